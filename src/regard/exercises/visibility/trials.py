"""Reference, calls and probes of `visibility`."""

from functools import partial

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial, changed, worked
from regard.exercises.shared.lengths import edited, lengths_of

CAUSAL = {
    "columns": "n_key",
    "first": "start",
    "key": "torch.arange(columns)",
    "query": "torch.arange(n_query)[:, None] + first",
    "causal": "key <= query",
    "turned": "causal",
    "visible": "turned",
}
PADDING = {
    "width": "n_key",
    "lengths": "valid_lens",
    "key": "torch.arange(width)",
    "length": "lengths[:, None]",
    "padding": "key < length",
    "axes": "padding",
    "visible": "axes",
}
BOTH = {"polarity": "visible", "dtype": "polarity"}


def reference(case: Case, **choices: str) -> Tensor:
    """The table that the call asks for."""
    causal = case.call == "causal_visible"
    formulas = {**(CAUSAL if causal else PADDING), **BOTH}
    given = dict(zip(("n_query" if causal else "valid_lens", "n_key"), case.args, strict=True))
    chosen = {name: choice for name, choice in choices.items() if name in formulas}
    table: Tensor = worked(formulas, chosen, start=case.kwargs.get("start", 0), **given)
    return table


def causal(draw: Draw) -> Case:
    start = {"start": draw["start"]} if "start" in draw.sizes else {}
    return Case((draw["query"], draw["key"]), start, call="causal_visible")


def padding(draw: Draw, dtype: torch.dtype = torch.long) -> Case:
    return Case((lengths_of(draw).to(dtype), draw["key"]), call="padding_visible")


with_empty = edited(padding, lambda case, draw: case.args[0][0].zero_())
NEIGHBOUR = "the length of sequence 0 was changed: the rows of sequences 1 and 2 may not move."
longer = changed(padding, lambda case, draw: case.args[0][0].add_(1))

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
    Trial(
        "lengths of another dtype", partial(padding, dtype=torch.int32), {"batch": 2, "key": 5}, grad=False
    ),
)

PROBES = (Probe("a neighbour's length has no say", longer, {"batch": 3, "key": 7}, says=NEIGHBOUR),)
