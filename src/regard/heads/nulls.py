"""What the heads of models with random weights reach: the null that a label is compared with.

A null depends on the architecture and the length of what is read, not on the text: the twins read random
tokens. It is kept in memory, and in the user's cache folder if it took longer than a second.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from regard import __version__
from regard.errors import ArgumentError
from regard.files.hub import cache_folder
from regard.files.loading import Loaded, untrained
from regard.heads.chance import RandomNull
from regard.heads.measures import ARGMAXES, ROW_MEASURES
from regard.heads.model import layers_of, loaded_of
from regard.heads.probes import ProbeInput, combine, made_inputs, measure_traced, tokens_around
from regard.models.foreign import Foreign
from regard.registry import MEASURES
from regard.tracing.take import trace
from regard.tracing.traces import Trace

FEWEST_DRAWS, MOST_DRAWS, N_HEAD = 3, 24, 240  # twins are drawn until there are so many heads
SEED = 7_000_003  # far from the seeds that people choose, so that a random model is not its own null
MOST_WEIGHTS = 400_000_000  # of a model whose twins are drawn without being asked for
KEPT_SECONDS = 1.0  # what took longer is kept in the cache folder
LINK = "link"  # beside the measures: the largest single weight of a head
_VERSION = 2  # of what is kept there
_nulls: dict[str, RandomNull] = {}


def random_null(
    model: Loaded | nn.Module,
    n_token: int = 64,
    *,
    n_repeat: int = 0,
    n_needle: int = 0,
    n_draw: int | None = None,
) -> RandomNull:
    """Measure what the heads of the same architecture with random weights reach.

    Args:
        model: A model; its weights are not used, but for a foreign module's, whose scale is kept.
        n_token: How long the texts are that the null is for; the twins read random tokens of a power of two
            below.
        n_repeat: How many sequences of repeated tokens measure copies and induction; with 0, the random text
            does.
        n_needle: How many needles measure retrieval; with 0, the random text does.
        n_draw: How many twins are drawn; None: as many as give 240 heads, from 3 to 24.

    Returns:
        The largest of all heads of all twins, for each measure.

    Raises:
        ArgumentError: If `n_token` is below 2 or `n_draw` below 1.
    """
    loaded = loaded_of(model)
    layers = {name: len(heads) for name, heads in layers_of(loaded).items() if heads}
    n_head = sum(layers.values())
    if n_draw is None:
        n_draw = min(MOST_DRAWS, max(FEWEST_DRAWS, math.ceil(N_HEAD / max(1, n_head))))
    if n_token < 2 or n_draw < 1:
        raise ArgumentError(f"a null needs 2 tokens and 1 draw at least. Got {n_token} and {n_draw}.")
    limit = loaded.model.sizes.n_position or n_token
    n_token = max(2, min(2 ** int(math.log2(n_token)), 512, limit))
    what = f"{_VERSION} {_architecture(loaded)} {n_token} {n_repeat} {n_needle} {n_draw} {ROW_MEASURES}"
    key = hashlib.sha256(what.encode()).hexdigest()[:32]
    if key not in _nulls:
        kept = cache_folder() / "nulls" / f"{key}.json"
        lifts = _read_lifts(kept)
        if lifts is None:
            began = time.perf_counter()
            lifts = _measure_lifts(loaded, layers, n_token, n_repeat, n_needle, n_draw)
            if time.perf_counter() - began > KEPT_SECONDS:
                _write_lifts(kept, lifts)
        _nulls[key] = RandomNull(lifts, n_draw, n_head, n_token)
    return _nulls[key]


def null_maker(
    loaded: Loaded, n_token: int, *, n_repeat: int = 0, n_needle: int = 0
) -> Callable[[], RandomNull] | None:
    """Return a function that measures the null when it is needed, or None for a model that has none.

    Encoder-decoders and models without a vocabulary have none here, nor have those with more than 400 million
    weights: their twins would keep somebody waiting. Their heads are compared with permuted keys alone.

    Args:
        loaded: The model.
        n_token: How long the texts are.
        n_repeat: How many sequences of repeated tokens.
        n_needle: How many needles.

    Returns:
        `random_null` of these, or None.
    """
    model = loaded.model
    n_weight = sum(parameter.numel() for parameter in model.parameters())
    reads_text = model.kind in ("encoder", "decoder") and bool(model.sizes.vocab)
    if not reads_text or n_weight > MOST_WEIGHTS or n_token < 2:
        return None
    return partial(random_null, loaded, n_token, n_repeat=n_repeat, n_needle=n_needle)


def _read_lifts(path: Path) -> dict[str, float] | None:
    """Return what was kept, or None where nothing readable is."""
    try:
        lifts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    is_whole = isinstance(lifts, dict) and all(isinstance(lift, float) for lift in lifts.values())
    return lifts if is_whole else None


def _write_lifts(path: Path, lifts: dict[str, float]) -> None:
    """Keep a null for the next session; a cache that cannot be written costs time alone."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{os.getpid()}")  # written whole or not at all
        draft.write_text(json.dumps(lifts), encoding="utf-8")
        draft.replace(path)


def _measure_lifts(
    loaded: Loaded, layers: dict[str, int], n_token: int, n_repeat: int, n_needle: int, n_draw: int
) -> dict[str, float]:
    """Return the largest lift of each measure over all heads of all twins."""
    before, after = tokens_around(loaded)
    vocab = loaded.model.sizes.vocab
    special = set() if loaded.tokenizer is None else set(loaded.tokenizer.special.all())
    allowed = torch.tensor([index for index in range(vocab) if index not in special])
    largest: dict[str, float] = {}
    for draw, twin in enumerate(random_twins(loaded, n_draw)):
        generator = torch.Generator().manual_seed(SEED + draw)
        n_free = max(2, n_token - len(before) - len(after))
        # A quarter as many kinds of tokens as tokens: some come again, as they do in a text.
        few = allowed[torch.randint(len(allowed), (max(2, n_free // 4),), generator=generator)]
        hay = few[torch.randint(len(few), (n_free,), generator=generator)]
        text = torch.cat([before, hay, after]).long().tolist()
        made = made_inputs(
            twin,
            hay.tolist(),
            n_repeat=n_repeat,
            n_token=40,
            n_needle=n_needle,
            seed=SEED + draw,
            longest=512,
        )
        inputs = [ProbeInput("text", text), *made]
        n_id = max(vocab, 0 if loaded.tokenizer is None else loaded.tokenizer.vocab_size)
        counts = torch.bincount(hay, minlength=n_id)
        traces = [trace(twin, torch.tensor([read.ids])) for read in inputs]
        packed = [
            measure_traced(traced, read, counts, special) for traced, read in zip(traces, inputs, strict=True)
        ]
        largest[LINK] = max(largest.get(LINK, 0.0), _largest_link(traces[0]))
        measures, _, _ = combine(
            packed, [read.kind for read in inputs], tuple(layers), tuple(layers.values())
        )
        for name, info in MEASURES.items():
            if info.unit != "share":
                continue
            lifts = []
            for of in ARGMAXES if name == "positional" else (name,):
                values, chance = measures[of], measures.chance[of][:, None]
                below = (
                    chance - values
                    if name == "uniformity"
                    else (values - chance) / (1 - chance).clamp(min=1e-9)
                )
                lifts.append(float(below.nan_to_num(-1.0).max()))
            largest[name] = max(largest.get(name, 0.0), *lifts)
    return largest


def _largest_link(traced: Trace) -> float:
    """Return the largest single weight of all heads, as a share of the way from chance to 1."""
    largest = 0.0
    for layer in traced.layers:
        for rows, cols, weights in layer.strips():
            n_visible = layer.visible(0, rows, cols).sum(-1).clamp(min=1)
            lift = (weights.amax(-1) - 1 / n_visible) / (1 - 1 / n_visible.clamp(min=2))
            largest = max(largest, float(lift.where(n_visible > 1, 0.0).max()))
    return largest


def random_twins(loaded: Loaded, n_draw: int) -> Iterator[Loaded]:
    """Yield models of the same architecture with random weights, each with another seed.

    A model of ours gets the weights that its training starts from; of a foreign module every matrix is drawn
    anew, with the mean and the spread that it has.

    Args:
        loaded: The model.
        n_draw: How many.

    Yields:
        One model after the other; nothing keeps them.
    """
    for draw in range(n_draw):
        if not isinstance(loaded.model, Foreign):
            yield untrained(loaded, SEED + draw)
            continue
        twin = copy.deepcopy(loaded.model)
        generator = torch.Generator().manual_seed(SEED + draw)
        with torch.no_grad():
            for parameter in twin.parameters():
                if parameter.ndim >= 2:
                    noise = torch.randn(parameter.shape, generator=generator)
                    spread, mean = torch.std_mean(parameter.float())
                    parameter.copy_(noise.to(parameter.device) * spread + mean)
        yield replace(loaded, model=twin)


def _architecture(loaded: Loaded) -> str:
    """Describe what a null depends on, as a text: the same for every model of one shape."""
    model = loaded.model
    tokenizer = "" if loaded.tokenizer is None else f"{loaded.tokenizer.encode('')}"
    dtype = next(model.parameters()).dtype
    if not isinstance(model, Foreign):
        config = getattr(model, "config", None)
        return f"{__version__} {model.family} {config} {dtype} {tokenizer}"
    weights = [
        f"{tuple(p.shape)} {float(p.detach().float().std()):.3g}" for p in model.parameters() if p.ndim >= 2
    ]
    return f"{__version__} {type(model).__name__} {weights} {dtype} {tokenizer}"
