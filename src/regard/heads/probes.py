"""What heads are measured on beside texts, and the means over all of it.

Copies and induction are measured on random tokens that come twice, where nothing else explains them, and
retrieval on needles planted in a text.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from regard.errors import ArgumentError
from regard.files.loading import Loaded
from regard.heads.measures import ROW_MEASURES, Measures, measure
from regard.registry import MEASURES, ProbeText
from regard.tracing.take import trace
from regard.tracing.traces import Trace

NEEDLE, HAY = 8, 240  # tokens
# Two-sided 95 % points of Student's t for 1 to 30 degrees of freedom; beyond, the normal's is close enough.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
Ends = dict[str, Float[Tensor, "layer head"]]  # lower or upper ends of confidence intervals, by measure


@dataclass(frozen=True, slots=True, eq=False)
class ProbeInput:
    """One sequence to measure heads on: its kind, its ids, and which rows ask for a needle."""

    kind: ProbeText
    ids: list[int]
    asked: Bool[Tensor, "position"] | None = None


def repeated_tokens(loaded: Loaded, n_token: int, seed: int = 0) -> Int[Tensor, "position"]:
    """Return different random tokens, twice, with what the model puts around a text (Olsson et al. 2022).

    The second half can be predicted only by looking back at the first.

    Args:
        loaded: A model, whose vocabulary the tokens come from.
        n_token: How many tokens are drawn.
        seed: What decides which.

    Returns:
        Ids, ``(position,)``.

    Raises:
        ArgumentError: If the vocabulary does not have as many different tokens.
    """
    once = _draw_tokens(loaded, n_token, seed)
    before, after = tokens_around(loaded)
    return torch.cat([before, once, once, after]).long()


def planted_needle(
    loaded: Loaded, hay: Sequence[int], seed: int = 0, n_token: int = NEEDLE
) -> tuple[Int[Tensor, "position"], Bool[Tensor, "position"]]:
    """Return a text with random tokens planted in it and asked for at its end (Wu et al. 2024).

    The needle is made of tokens that the text does not have. It comes again after the text, and each of its
    tokens but the last asks for the next: a head that retrieves looks most at that one, where it was planted.

    Args:
        loaded: A model, whose vocabulary the needle comes from.
        hay: The ids of a text, without special tokens around it.
        seed: What decides the needle and its place.
        n_token: The length of the needle.

    Returns:
        Ids and True for each row that asks, both ``(position,)``.

    Raises:
        ArgumentError: If the vocabulary does not have enough tokens beside those of the text.
    """
    needle = _draw_tokens(loaded, n_token, seed, without=hay)
    at = int(torch.randint(1, max(2, len(hay)), (1,), generator=torch.Generator().manual_seed(seed)))
    before, after = tokens_around(loaded)
    ids = torch.cat([before, torch.tensor(hay[:at]), needle, torch.tensor(hay[at:]), needle, after]).long()
    asks = torch.zeros(len(ids), dtype=torch.bool)
    last = len(ids) - len(after)
    asks[last - n_token : last - 1] = True
    return ids, asks


def made_inputs(
    loaded: Loaded,
    hay: Sequence[int],
    *,
    n_repeat: int,
    n_token: int,
    n_needle: int,
    seed: int,
    longest: int,
) -> list[ProbeInput]:
    """Return repeated tokens, and needles planted in parts of the hay, as far as the model is long enough."""
    n_around = sum(map(len, tokens_around(loaded)))
    limit = loaded.model.sizes.n_position or sys.maxsize
    inputs = []
    for index in range(n_repeat):
        ids = repeated_tokens(loaded, min(n_token, (limit - n_around) // 2), seed + index)
        inputs.append(ProbeInput("repeat", ids.tolist()))
    size = max(0, min(HAY, min(longest, limit) - n_around - 2 * NEEDLE, len(hay)))
    for index in range(n_needle if size > NEEDLE else 0):
        first = index * (len(hay) - size) // max(1, n_needle - 1)
        ids, asks = planted_needle(loaded, hay[first : first + size], seed + index)
        inputs.append(ProbeInput("needle", ids.tolist(), asks))
    return inputs


def _draw_tokens(
    loaded: Loaded, n_token: int, seed: int, without: Sequence[int] = ()
) -> Int[Tensor, "n_token"]:
    """Return different random tokens of a vocabulary, none of them special."""
    special = set() if loaded.tokenizer is None else set(loaded.tokenizer.special.all())
    left_out = special | set(without)
    allowed = torch.tensor([index for index in range(loaded.model.sizes.vocab) if index not in left_out])
    if not 1 <= n_token <= len(allowed):
        raise ArgumentError(f"n_token different tokens are drawn, from 1 to {len(allowed)}. Got {n_token}.")
    order = torch.randperm(len(allowed), generator=torch.Generator().manual_seed(seed))
    return allowed[order[:n_token]]


def tokens_around(loaded: Loaded) -> tuple[Tensor, Tensor]:
    """Return what the tokenizer puts before and after a text."""
    tokenizer = loaded.tokenizer
    ids = torch.tensor([] if tokenizer is None else tokenizer.encode(""))
    ends = tokenizer is not None and ids.tolist() == [tokenizer.special.eos] != [tokenizer.special.bos]
    n_before = 0 if ends else 1
    return ids[:n_before], ids[n_before:]


def measure_input(
    loaded: Loaded, read: ProbeInput, counts: Int[Tensor, "vocab"], special_ids: Collection[int]
) -> Float64[Tensor, "measure layer part"]:
    """Return the values and variances of all heads on one sequence, then chance and the number of rows."""
    return measure_traced(trace(loaded, torch.tensor([read.ids])), read, counts, special_ids)


def measure_traced(
    traced: Trace, read: ProbeInput, counts: Int[Tensor, "vocab"], special_ids: Collection[int]
) -> Float64[Tensor, "measure layer part"]:
    """Return what `measure_input` does, of a trace of that sequence."""
    measured = measure(traced, counts=counts, special_ids=special_ids, asked=read.asked)
    tables = (measured.values, measured.variance, measured.chance, measured.n_query)
    values, variance, chance, n_row = (
        torch.stack([table[name].double() for name in ROW_MEASURES]) for table in tables
    )
    return torch.cat([values, variance, chance[..., None], n_row[..., None]], dim=-1)


def combine(
    packed: Sequence[Tensor], kinds: Sequence[str], layers: tuple[str, ...], n_heads: tuple[int, ...]
) -> tuple[Measures, Ends, Ends]:
    """Return the means over sequences, and 95 % intervals from how the sequences differ.

    Args:
        packed: What `measure_input` gave for each sequence.
        kinds: The kind of each sequence.
        layers: The names of the layers.
        n_heads: How many heads each layer has.

    Returns:
        The means, and the lower and upper ends of their intervals: NaN from one sequence.
    """
    low: Ends = {}
    high: Ends = {}
    values, chance, n_query, variance, step = {}, {}, {}, {}, {}
    t95 = torch.tensor([torch.nan, torch.nan, *_T95, 1.96], dtype=torch.float64)  # by the number of sequences
    for index, name in enumerate(ROW_MEASURES):
        info = MEASURES.get(name, MEASURES["positional"])  # the argmaxes are the parts of that one
        wanted = info.probe if info.probe in kinds else "text"
        samples = torch.stack([one for one, kind in zip(packed, kinds, strict=True) if kind == wanted])[
            :, index
        ]
        heads, spread = samples[..., :-2].chunk(2, -1)  # NaN where a sequence has no such place
        n_row = samples[..., -1]
        n = (n_row > 0).sum(0)  # by layer: how many sequences have such a place
        mean = heads.nanmean(0)
        squares = (heads - mean).square().nansum(0)
        deviation = (squares / (n[:, None] - 1)).sqrt()  # 0 / 0 where there is one: NaN, no interval
        half = t95[n.clamp(max=len(t95) - 1)][:, None] * deviation / n[:, None].sqrt()
        values[name] = mean
        # A share lies between 0 and 1, and so does its interval.
        low[name] = (mean - half).clamp(*info.scale)
        high[name] = (mean + half).clamp(*info.scale)
        chance[name] = samples[..., -2].nanmean(0)
        n_query[name] = n_row.sum(0).long()
        variance[name] = (
            spread.nansum(0).where(~mean.isnan() & ~spread.isnan().all(0), torch.nan) / n[:, None] ** 2
        )
        # One row of the shortest sequence moves the mean most.
        step[name] = (1 / n_row.where(n_row > 0, torch.inf)).amax(0) / n
    return Measures(layers, n_heads, values, chance, n_query, variance, step), low, high
