"""Measures over many texts: means with confidence intervals, resumable, on one process or several; tables.

    survey(load("smollm2"), texts, state="survey.safetensors")
    torchrun --nproc-per-node 2 my_survey.py      # the same call: each process takes its share

Every text is one sample. What each text gave is kept until the end and put together in the order of
the texts, so the numbers do not depend on how many processes there were.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, get_args

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, distributed, nn

from regard.drawing.tables import dataframe
from regard.errors import ArgumentError, LoadError
from regard.files.loading import Loaded
from regard.files.safetensors import write_safetensors
from regard.heads.chance import RandomNull
from regard.heads.labels import HeadLabel, heads_html, label
from regard.heads.measures import ROW_MEASURES, Measures
from regard.heads.model import layers_of, loaded_of, tokenizer_of
from regard.heads.nulls import null_maker
from regard.heads.probes import Ends, ProbeInput, combine, made_inputs, measure_input
from regard.registry import ProbeText

Item = TypeVar("Item")
SAVE_SECONDS = 10.0  # what an interruption can cost


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """Means over texts, and 95 % confidence intervals of them.

    Attributes:
        measures: The means; `n_query` counts rows over all texts.
        low: The lower ends of the intervals, by measure, ``(layer, head)``; NaN from one text.
        high: The upper ends.
        n_text: How many texts were read.
        n_repeat: How many sequences of repeated random tokens.
        n_needle: How many needles.
        make_null: Measures what the same architecture with random weights reaches; None where the model is
            not at hand, as of a trace.
    """

    measures: Measures
    low: Ends
    high: Ends
    n_text: int
    n_repeat: int
    n_needle: int = 0
    make_null: Callable[[], RandomNull] | None = None

    def labels(self) -> list[HeadLabel]:
        """Label every head, against random weights where the model is at hand.

        Returns:
            A label for each head; its score is surely above chance where there is more than one text.
        """
        null = None if self.make_null is None else self.make_null()
        return label(self.measures, null=null, low=self.low or None, high=self.high or None)

    def __repr__(self) -> str:
        made = f"{self.n_repeat} repeated ones and {self.n_needle} needles"
        return f"Survey of {self.n_text} texts, {made}. {self.measures!r}"

    def _repr_html_(self) -> str:
        """The heads as a notebook shows them: a picture of the labels, and each label with its rule."""
        return heads_html(self.labels(), self.measures.layers, f"{self.n_text} texts")


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
    """Survey every head of a model: all measures, averaged over texts.

    Copies and induction are measured on repeated random tokens, retrieval on needles planted in the texts.
    Under torchrun each process takes its share of the texts; all return the same.

    Args:
        model: A model that was loaded, or any module that can be traced.
        texts: The texts, at least one.
        n_repeat: How many sequences of repeated random tokens are added; with 0, the texts serve.
        n_token: How many tokens these repeat.
        n_needle: How many needles are planted; with 0, the texts serve.
        seed: What decides the random tokens.
        longest: Texts are cut at so many tokens.
        state: A file that keeps what is done, written whole or not at all, and is found again when the same
            survey is started anew, with any number of processes.
        progress: Whether a bar is shown.
        tokenizer: What reads the texts, for a module that has no tokenizer of its own.

    Returns:
        The means with 95 % confidence intervals over texts.

    Raises:
        ArgumentError: If there is no text, one has fewer than two tokens, or a number is negative.
        LoadError: If `state` is the file of another survey.
    """
    if not texts or isinstance(texts, str):
        raise ArgumentError(f"texts must be a list of one text at least. Got {texts!r}.")
    if min(n_repeat, n_needle) < 0 or longest < 2:
        got = f"Got {n_repeat}, {n_needle} and {longest}."
        raise ArgumentError(f"n_repeat and n_needle must not be negative and longest at least 2. {got}")
    loaded = loaded_of(model, tokenizer)
    layers, sizes = layers_of(loaded), loaded.model.sizes
    reads = tokenizer_of(loaded)
    inputs = [ProbeInput("text", reads.encode(text)[:longest]) for text in texts]
    empty = [index for index, read in enumerate(inputs) if len(read.ids) < 2]
    if empty:
        raise ArgumentError(f"texts {empty[:5]} have fewer than 2 tokens: nothing can be looked at.")
    hay = [token for text in texts for token in reads.encode(text, add_special=False)]
    made = {"n_repeat": n_repeat, "n_token": n_token, "n_needle": n_needle}
    inputs += made_inputs(loaded, hay, **made, seed=seed, longest=longest)
    n_id = max(sizes.vocab, reads.vocab_size)
    counts = torch.bincount(torch.tensor(hay, dtype=torch.long), minlength=n_id)
    rank, n_process = 0, 1
    if distributed.is_available():
        if not distributed.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            distributed.init_process_group("gloo")  # torchrun started several
        if distributed.is_initialized():
            rank, n_process = distributed.get_rank(), distributed.get_world_size()
    # What makes two surveys the same: the model's weights (in sum), its shape and every input.
    digest = hashlib.sha256(json.dumps([(read.kind, read.ids) for read in inputs]).encode())
    digest.update(f"{loaded.model.family} {sizes} {layers} {ROW_MEASURES}".encode())
    for parameter in loaded.model.parameters():
        digest.update(f"{parameter.detach().double().sum().item():.17g}".encode())
    fingerprint = digest.hexdigest()
    path = None if state is None else Path(state)
    done, saved = {} if path is None else _read(path, fingerprint), time.monotonic()
    mine = [index for index in range(len(inputs)) if index not in done][rank::n_process]
    shown = with_bar(mine, "measuring heads") if progress and rank == 0 and len(mine) > 1 else mine
    for index in shown:
        done[index] = measure_input(loaded, inputs[index], counts, reads.special.all())
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
    kinds = [read.kind for read in inputs]
    measures, low, high = combine(packed, kinds, tuple(heads), tuple(heads.values()))
    n_kind = {kind: kinds.count(kind) for kind in get_args(ProbeText)}
    middle = sorted(len(read.ids) for read in inputs if read.kind == "text")[len(texts) // 2]
    n_text, n_repeat, n_needle = n_kind.values()
    make_null = null_maker(loaded, middle, n_repeat=n_repeat, n_needle=n_needle)
    return Survey(measures, low, high, n_text, n_repeat, n_needle, make_null)


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
    """Return columns by name, a row for each head: labels and why, or every measure, or of a survey both.

    Args:
        table: Measures, a survey or labels.

    Returns:
        A list for each column.

    Raises:
        ArgumentError: If it is none of these.

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
    """Return `columns_of` as a pandas DataFrame, where pandas is installed.

    Args:
        table: Measures, a survey or labels.

    Returns:
        A DataFrame with a row for each head.
    """
    return dataframe(columns_of(table))
