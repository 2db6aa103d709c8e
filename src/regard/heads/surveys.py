"""Measures over many texts: means with confidence intervals, resumable, on one process or several; tables.

    survey(load("smollm2"), texts, state="survey.safetensors")
    torchrun --nproc-per-node 2 my_survey.py      # the same call: each process takes its share

Every text is one sample. What each text gave is kept until the end and put together in the order of
the texts, so the numbers do not depend on how many processes there were.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from safetensors import SafetensorError, safe_open
from torch import Tensor, distributed, nn

from regard.drawing.tables import dataframe
from regard.errors import ArgumentError, LoadError
from regard.files.loading import Loaded
from regard.files.safetensors import write_safetensors
from regard.heads.labels import HeadLabel, heads_html, label
from regard.heads.measures import ROW_MEASURES, Measures, measure
from regard.heads.model import layers_of, loaded_of, tokenizer_of
from regard.registry import MEASURES
from regard.tracing.take import trace

NEEDLE, HAY = 8, 240  # tokens
Item = TypeVar("Item")
_Input = tuple[str, list[int], Tensor | None]  # "text", "repeat" or "needle"; ids; the rows that ask
SAVE_SECONDS = 10.0  # what an interruption can cost
# Two-sided 95 % points of Student's t for 1 to 30 degrees of freedom; beyond, the normal's is close enough.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """Means over texts, and 95 % confidence intervals of them."""

    measures: Measures  # means; n_query counts rows over all texts
    low: dict[str, Float[Tensor, "layer head"]]
    high: dict[str, Float[Tensor, "layer head"]]
    n_text: int
    n_repeat: int
    n_needle: int = 0

    def labels(self) -> list[HeadLabel]:
        """A label for every head, its score surely above chance where there is more than one text."""
        return label(self.measures, low=self.low, high=self.high)

    def __repr__(self) -> str:
        made = f"{self.n_repeat} repeated ones and {self.n_needle} needles"
        return f"Survey of {self.n_text} texts, {made}. {self.measures!r}"

    def _repr_html_(self) -> str:
        """The heads as a notebook shows them: a picture of the labels, and each label with its rule."""
        return heads_html(self.labels(), self.measures.layers, f"{self.n_text} texts")


def repeated_tokens(loaded: Loaded, n_token: int, seed: int = 0) -> Int[Tensor, "position"]:
    """`n_token` different random tokens, twice (Olsson et al. 2022), with what the model puts around a text.

    The second half can be foretold by nothing but looking back at the first.
    """
    once = _drawn(loaded, n_token, seed)
    before, after = _around(loaded)
    return torch.cat([before, once, once, after]).long()


def planted_needle(
    loaded: Loaded, hay: Sequence[int], seed: int = 0, n_token: int = NEEDLE
) -> tuple[Int[Tensor, "position"], Bool[Tensor, "position"]]:
    """A text with random tokens planted in it and asked for at its end (Wu et al. 2024), and which rows ask.

    The needle is one of tokens that the text has not. Behind the text it comes again, and each of its tokens
    but the last asks for the next: a head that retrieves looks most at that one, where it was planted.
    """
    needle = _drawn(loaded, n_token, seed, without=hay)
    at = int(torch.randint(1, max(2, len(hay)), (1,), generator=torch.Generator().manual_seed(seed)))
    before, after = _around(loaded)
    ids = torch.cat([before, torch.tensor(hay[:at]), needle, torch.tensor(hay[at:]), needle, after]).long()
    asks = torch.zeros(len(ids), dtype=torch.bool)
    last = len(ids) - len(after)
    asks[last - n_token : last - 1] = True
    return ids, asks


def _drawn(loaded: Loaded, n_token: int, seed: int, without: Sequence[int] = ()) -> Int[Tensor, "n_token"]:
    """Different random tokens of a vocabulary, none of them special."""
    special = set() if loaded.tokenizer is None else set(loaded.tokenizer.special.all())
    left_out = special | set(without)
    allowed = torch.tensor([index for index in range(loaded.model.sizes.vocab) if index not in left_out])
    if not 1 <= n_token <= len(allowed):
        raise ArgumentError(f"n_token different tokens are drawn, from 1 to {len(allowed)}. Got {n_token}.")
    order = torch.randperm(len(allowed), generator=torch.Generator().manual_seed(seed))
    return allowed[order[:n_token]]


def _around(loaded: Loaded) -> tuple[Tensor, Tensor]:
    """What the tokenizer puts before and after a text."""
    tokenizer = loaded.tokenizer
    ids = torch.tensor([] if tokenizer is None else tokenizer.encode(""))
    ends = tokenizer is not None and ids.tolist() == [tokenizer.special.eos] != [tokenizer.special.bos]
    n_before = 0 if ends else 1
    return ids[:n_before], ids[n_before:]


def survey(
    model: Loaded | nn.Module,
    texts: Sequence[str],
    *,
    n_repeat: int = 4,
    n_token: int = 40,
    n_needle: int = 4,
    seed: int = 0,
    longest: int = 512,
    state: str | Path | None = None,
    progress: bool = True,
    tokenizer: Any = None,
) -> Survey:
    """Every measure of every head, averaged over `texts`; induction and copies on repeated random tokens.

    `n_repeat` sequences of `n_token` random tokens, twice each, are added for those, and `n_needle` texts
    with a needle to retrieve, made of all texts together; with 0, the texts serve. Texts are cut at
    `longest` tokens. With `state`, what is done is kept in a file (written whole or not at all) and found
    again when the same survey is started anew, with any number of processes. Under torchrun each process
    takes its share; all return the same.
    """
    if not texts or isinstance(texts, str):
        raise ArgumentError(f"texts must be a list of one text at least. Got {texts!r}.")
    if min(n_repeat, n_needle) < 0 or longest < 2:
        got = f"Got {n_repeat}, {n_needle} and {longest}."
        raise ArgumentError(f"n_repeat and n_needle must not be negative and longest at least 2. {got}")
    loaded = loaded_of(model, tokenizer)
    layers, sizes = layers_of(loaded), loaded.model.sizes
    reads = tokenizer_of(loaded)
    inputs: list[_Input] = [("text", reads.encode(text)[:longest], None) for text in texts]
    empty = [index for index, (_, ids, _) in enumerate(inputs) if len(ids) < 2]
    if empty:
        raise ArgumentError(f"texts {empty[:5]} have fewer than 2 tokens: nothing can be looked at.")
    n_around, limit = sum(map(len, _around(loaded))), sizes.n_position or sys.maxsize
    for index in range(n_repeat):
        ids = repeated_tokens(loaded, min(n_token, (limit - n_around) // 2), seed + index)
        inputs.append(("repeat", ids.tolist(), None))
    hay = [token for text in texts for token in reads.encode(text, add_special=False)]
    size = max(0, min(HAY, min(longest, limit) - n_around - 2 * NEEDLE, len(hay)))
    for index in range(n_needle if size > NEEDLE else 0):
        first = index * (len(hay) - size) // max(1, n_needle - 1)
        ids, asks = planted_needle(loaded, hay[first : first + size], seed + index)
        inputs.append(("needle", ids.tolist(), asks))
    n_id = max(sizes.vocab, reads.vocab_size)
    counts = torch.bincount(torch.tensor(hay, dtype=torch.long), minlength=n_id)
    rank, n_process = 0, 1
    if distributed.is_available():
        if not distributed.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            distributed.init_process_group("gloo")  # torchrun started several
        if distributed.is_initialized():
            rank, n_process = distributed.get_rank(), distributed.get_world_size()
    # What makes two surveys the same: the model's weights (in sum), its shape and every input.
    digest = hashlib.sha256(json.dumps([(kind, ids) for kind, ids, _ in inputs]).encode())
    digest.update(f"{loaded.model.family} {sizes} {layers} {ROW_MEASURES}".encode())
    for parameter in loaded.model.parameters():
        digest.update(f"{parameter.detach().double().sum().item():.17g}".encode())
    fingerprint = digest.hexdigest()
    path = None if state is None else Path(state)
    done, saved = {} if path is None else _read(path, fingerprint), time.monotonic()
    mine = [index for index in range(len(inputs)) if index not in done][rank::n_process]
    shown = with_bar(mine, "measuring heads") if progress and rank == 0 and len(mine) > 1 else mine
    for index in shown:
        _, tokens, asked = inputs[index]
        traced = trace(loaded, torch.tensor([tokens]))
        measured = measure(traced, counts=counts, special_ids=reads.special.all(), asked=asked)
        parts = (measured.values, measured.chance, measured.n_query)
        values, chance, n_row = (torch.stack([part[n].double() for n in ROW_MEASURES]) for part in parts)
        # (measure, layer, part): along the last axis the heads' values, then chance, then counts.
        done[index] = torch.cat([values, chance[..., None], n_row[..., None]], dim=-1)
        if path is not None and (time.monotonic() - saved > SAVE_SECONDS or index == mine[-1]):
            kept = path if n_process == 1 else path.with_name(f"{path.name}.{rank}")
            draft = kept.with_name(f"{kept.name}.part")  # written whole or not at all
            tensors = {"index": torch.tensor(list(done)), "values": torch.stack(list(done.values()))}
            path.parent.mkdir(parents=True, exist_ok=True)
            write_safetensors(tensors, draft, {"survey": fingerprint})
            draft.replace(kept)
            saved = time.monotonic()
    if n_process > 1:
        of_all: list[dict[int, Tensor]] = [{}] * n_process
        distributed.all_gather_object(of_all, done)
        done = {index: packed for part in of_all for index, packed in part.items()}
    # A layer whose heads were all pruned has no trace.
    heads = {name: len(left) for name, left in layers.items() if left}
    packed = [done[index] for index in range(len(inputs))]
    return _combined(packed, [kind for kind, _, _ in inputs], tuple(heads), tuple(heads.values()))


def _combined(
    packed: list[Tensor], kinds: list[str], layers: tuple[str, ...], n_heads: tuple[int, ...]
) -> Survey:
    """Means, and intervals from how the texts differ."""
    values, chance, n_query, low, high = {}, {}, {}, {}, {}
    t95 = torch.tensor([torch.nan, torch.nan, *_T95, 1.96], dtype=torch.float64)  # by the number of texts
    for index, name in enumerate(ROW_MEASURES):
        info = MEASURES.get(name, MEASURES["positional"])  # the argmaxes are the parts of that one
        wanted: str = info.probe
        wanted = wanted if wanted in kinds else "text"
        of_kind = [text for text, kind in zip(packed, kinds, strict=True) if kind == wanted]
        samples = torch.stack(of_kind)[:, index]
        n = (samples[..., -1] > 0).sum(0)  # by layer: how many texts have such a place
        heads = samples[..., :-2]  # NaN where it has none
        mean, spread = heads.nanmean(0), (heads - heads.nanmean(0)).square().nansum(0)
        deviation = (spread / (n[:, None] - 1)).sqrt()  # 0 / 0 where there is one text: NaN, no interval
        half = t95[n.clamp(max=len(t95) - 1)][:, None] * deviation / n[:, None].sqrt()
        values[name] = mean
        # A share lies between 0 and 1, and so does its interval.
        low[name] = (mean - half).clamp(*info.scale)
        high[name] = (mean + half).clamp(*info.scale)
        chance[name] = samples[..., -2].nanmean(0)
        n_query[name] = samples[..., -1].sum(0).long()
    measures = Measures(layers, n_heads, values, chance, n_query)
    return Survey(measures, low, high, *(kinds.count(kind) for kind in ("text", "repeat", "needle")))


def with_bar(items: Sequence[Item], words: str) -> Iterable[Item]:
    """The items, with a bar while a person waits for them."""
    from rich.console import Console
    from rich.progress import track

    return track(items, words, console=Console(stderr=True), transient=True)


def _read(path: Path, fingerprint: str) -> dict[int, Tensor]:
    """What was done before, by any process: there is a file for each."""
    done: dict[int, Tensor] = {}
    for file in sorted(path.parent.glob(f"{path.name}*")):
        if file.suffix == ".part":
            continue
        try:
            with safe_open(file, framework="pt") as held:
                if (held.metadata() or {}).get("survey") != fingerprint:
                    raise LoadError(f"{file} is the state of another survey: give another file.")
                index, values = held.get_tensor("index").tolist(), held.get_tensor("values")
        except (SafetensorError, OSError) as error:
            raise LoadError(f"{file} is no state of a survey: {error}.") from error
        done |= dict(zip(index, values, strict=True))
    return done


Table = Measures | Survey | Sequence[HeadLabel]


def columns_of(table: Table) -> dict[str, list[Any]]:
    """Columns by name, a row for each head: labels and why, or every measure, or of a survey both.

    >>> from regard.heads import measure
    >>> from regard.tracing.traces import Trace
    >>> columns_of(measure(Trace.from_weights([[1.0, 0.0], [0.5, 0.5]])))["previous"]
    [0.5]
    """
    if isinstance(table, Survey):
        return columns_of(table.labels()) | columns_of(table.measures)
    if isinstance(table, Measures):
        heads = [(index, head) for index, n_head in enumerate(table.n_heads) for head in range(n_head)]
        names = [*(name for name in table.values if not name.startswith("argmax")), "positional"]
        return {
            "layer": [table.layers[layer] for layer, _ in heads],
            "head": [head for _, head in heads],
            **{name: [float(table[name][at]) for at in heads] for name in names},
            "offset": [int(table.offset[at]) for at in heads],
        }
    if isinstance(table, Sequence) and all(isinstance(row, HeadLabel) for row in table):
        rows = [{**asdict(row), "also": " ".join(row.also)} for row in table]
        return {field.name: [row[field.name] for row in rows] for field in fields(HeadLabel)}
    raise ArgumentError(f"a table is made of Measures, a Survey or labels. Got {type(table).__name__}.")


def to_dataframe(table: Table) -> Any:
    """`columns_of` as a pandas DataFrame, where pandas is installed."""
    return dataframe(columns_of(table))
