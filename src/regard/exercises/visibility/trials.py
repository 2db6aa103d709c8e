"""Reference, calls and probes of `visibility`."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial, changed
from regard.exercises.shared.lengths import lengths_of


def reference(
    case: Case,
    *,
    polarity: str = "look",
    axes: str = "batch, key",
    causal: str = "key <= query",
    start: str = "added",
    length: str = "key < length",
    lengths: str = "of each",
    dtype: str = "boolean",
) -> Tensor:
    """The table that the call asks for."""
    if case.call == "causal_visible":
        n_query, n_key = case.args
        before: int = case.kwargs.get("start", 0)
        first = {
            "ignored": 0,
            "subtracted": -before,
            "from the end": n_key - n_query,
            "one more": before + (before > 0),
        }
        query = torch.arange(n_query)[:, None] + first.get(start, before)
        key = torch.arange(n_query if axes == "square" else n_key)[None]
        visible = {
            "key <= query": key <= query,
            "key < query": key < query,
            "key <= query + 1": key <= query + 1,
            "key >= query": key >= query,
            "key > query": key > query,
            "nothing hides": key == key + 0 * query,
        }[causal]
        if start == "hides the cache":
            visible = visible & (key >= before)
        if start == "shows everything" and before:
            visible = torch.ones_like(visible)
        visible = visible.T if axes == "keys first" else visible
    else:
        valid, n_key = case.args
        each = {"the first": valid[:1].expand(len(valid)), "at least 1": valid.clamp(min=1)}
        last = each.get(lengths, valid)[:, None]
        key = torch.arange(int(valid.max()) if axes == "as the longest" else n_key)
        visible = {
            "key < length": key < last,
            "key <= length": key <= last,
            "key < length - 1": key < last - 1,
            "key >= length": key >= last,
            "from the end": key >= n_key - last,
        }[length]
        visible = visible.T if axes == "key, batch" else visible
        if axes == "batch, 1, key":
            visible = visible[:, None]
        if axes == "batch, 1, 1, key":
            visible = visible[:, None, None]
        if lengths == "along the keys":
            visible = key < valid
    visible = torch.as_tensor(visible if polarity == "look" else ~visible)
    others: dict[str, Tensor] = {
        "float": visible.float(),
        "whole numbers": visible.long(),
        "0 and -inf": torch.zeros(visible.shape).masked_fill(~visible, -torch.inf),
    }
    return others.get(dtype, visible)


def causal(draw: Draw) -> Case:
    start = {"start": draw["start"]} if "start" in draw.sizes else {}
    return Case((draw["query"], draw["key"]), start, call="causal_visible")


def padding(draw: Draw) -> Case:
    return Case((lengths_of(draw), draw["key"]), call="padding_visible")


def with_empty(draw: Draw) -> Case:
    case = padding(draw)
    case.args[0][0] = 0
    return case


def of_int32(draw: Draw) -> Case:
    case = padding(draw)
    return case.with_args(case.args[0].to(torch.int32), case.args[1])


TRIALS = (
    Trial("causal, as many queries as keys", causal, {"query": 5, "key": 5}, grad=False),
    Trial("causal, more keys than queries", causal, {"query": 3, "key": 7}, grad=False),
    Trial("causal, more queries than keys", causal, {"query": 7, "key": 3}, grad=False),
    Trial("causal after a cache", causal, {"query": 3, "key": 7, "start": 4}, grad=False),
    Trial("causal from the middle", causal, {"query": 3, "key": 7, "start": 2}, grad=False),
    Trial("one query after a cache", causal, {"query": 1, "key": 7, "start": 5}, grad=False),
    Trial("causal beyond the keys", causal, {"query": 2, "key": 3, "start": 5}, grad=False),
    Trial("lengths", padding, {"batch": 3, "key": 7}, grad=False, variants=True),
    Trial("as many sequences as keys", padding, {"batch": 5, "key": 5}, grad=False),
    Trial("one sequence", padding, {"batch": 1, "key": 5}, grad=False),
    Trial("a length of 0", with_empty, {"batch": 3, "key": 5}, grad=False),
    Trial("lengths of another dtype", of_int32, {"batch": 2, "key": 5}, grad=False),
)

PROBES = (
    Probe(
        "a neighbour's length has no say",
        changed(padding, lambda case, draw: case.args[0][0].add_(1)),
        {"batch": 3, "key": 7},
        says="the length of sequence 0 was changed: the rows of sequences 1 and 2 may not move.",
    ),
)
