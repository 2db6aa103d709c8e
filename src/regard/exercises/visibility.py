"""Exercise: who may look at whom, as booleans."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.attention.visibility import Visibility
from regard.exercises.spec import Case, Convention, Draw, Exercise, Mistake, Probe, Right, Trial

TASK = """
Two tables of booleans, in which True means "may look":

    causal_visible(n_query, n_key, start=0)[i, j] = (j <= start + i)
    padding_visible(valid_lens, n_key)[b, j]      = (j < valid_lens[b])

- In `causal_visible` key `j` stands at position `j`, and query `i` at position `start + i`: with a cache,
  `start` is how many positions came before. A query sees the past and itself. Returns (n_query, n_key),
  boolean.
- In `padding_visible` the lengths are (batch,), whole numbers from 0 to `n_key`. Returns (batch, n_key),
  boolean, on the device of the lengths.
"""

STARTER = '''import torch


def causal_visible(n_query, n_key, start=0):
    """-> (n_query, n_key) booleans, True where query i, at position start + i, may look at key j."""
    raise NotImplementedError


def padding_visible(valid_lens, n_key):
    """Lengths (batch,) -> (batch, n_key) booleans, True where key j is within the length."""
    raise NotImplementedError
'''

POSITIONS = """import torch

def causal_visible(n_query, n_key, start=0):
    query_pos = torch.arange(n_query)[:, None] + start
    key_pos = torch.arange(n_key)[None, :]
    return key_pos <= query_pos

def padding_visible(valid_lens, n_key):
    positions = torch.arange(n_key, device=valid_lens.device)[None, :]
    lens = valid_lens[:, None]
    return positions < lens
"""

TRIANGLE = """import torch

def causal_visible(n_query, n_key, start=0):
    return torch.tril(torch.ones(n_query, n_key, dtype=torch.bool), diagonal=start)

def padding_visible(valid_lens, n_key):
    ones = torch.ones(valid_lens.shape[0], n_key, dtype=torch.long, device=valid_lens.device)
    return ones.cumsum(dim=1) <= valid_lens.unsqueeze(1)
"""

LOOPS = """import torch

def causal_visible(n_query, n_key, start=0):
    rows = []
    for i in range(n_query):
        rows.append([j <= start + i for j in range(n_key)])
    return torch.tensor(rows)

def padding_visible(valid_lens, n_key):
    visible = torch.zeros(len(valid_lens), n_key, dtype=torch.bool, device=valid_lens.device)
    for row, n in zip(visible, valid_lens):
        row[:n] = True
    return visible
"""

HIDDEN = """import torch

def causal_visible(n_query, n_key, start=0):
    future = torch.triu(torch.ones((n_query, n_key)), diagonal=start + 1)
    return future == 0

def padding_visible(valid_lens, n_key):
    table = torch.arange(n_key, device=valid_lens.device).expand(valid_lens.numel(), n_key)
    past_end = table.ge(valid_lens.view(-1, 1))
    return ~past_end
"""


def reference(case: Case, *, polarity: str = "look", axes: str = "batch, key") -> Tensor:
    """Our own visibility, drawn as a table."""
    if case.call == "causal_visible":
        n_query, n_key = case.args
        rule = Visibility(causal=True, start=case.kwargs.get("start", 0))
        visible = rule.tile(slice(0, n_query), slice(0, n_key))[0, 0]
    else:
        lengths, n_key = case.args
        table = Visibility(lengths=lengths).visible_keys(n_key)
        assert table is not None  # lengths were given
        visible = table if axes == "batch, key" else table[:, None]
        visible = visible[:, None] if axes == "batch, 1, 1, key" else visible
    return visible if polarity == "look" else ~visible


def causal(draw: Draw) -> Case:
    return Case((draw["query"], draw["key"]), call="causal_visible")


def causal_from(draw: Draw) -> Case:
    return Case((draw["query"], draw["key"]), {"start": draw["start"]}, call="causal_visible")


def padding(draw: Draw) -> Case:
    lens = draw.integers(1, draw["key"], "batch")
    if draw["batch"] > 1:  # two lengths that differ, one of them full
        lens[0], lens[1] = max(1, draw["key"] // 2), draw["key"]
    else:  # not full, or a table as wide as the longest sequence would look right
        lens[0] = max(1, draw["key"] - 2)
    return Case((lens, draw["key"]), call="padding_visible")


def with_empty(draw: Draw) -> Case:
    case = padding(draw)
    lens = case.args[0].clone()
    lens[0] = 0
    return case.with_args(lens, case.args[1])


def neighbour_changed(draw: Draw) -> tuple[Case, ...]:
    base = padding(draw)
    lens, n_key = base.args
    other = lens.clone()
    other[0] = lens[0] + 1
    return base, base.with_args(other, n_key)


def of_int32(draw: Draw) -> Case:
    case = padding(draw)
    return case.with_args(case.args[0].to(torch.int32), case.args[1])


EXERCISE = Exercise(
    id="visibility",
    title="Who may look at whom",
    names=("causal_visible", "padding_visible"),
    task=TASK,
    starter=STARTER,
    reference=reference,
    right=(
        Right("positions compared", POSITIONS),
        Right("a triangle, and a running count", TRIANGLE),
        Right("loops", LOOPS),
        Right("what is hidden, negated", HIDDEN),
    ),
    conventions=(
        Convention(
            "polarity",
            {
                "look": "True means may look.",
                "hidden": "True means hidden in both of your tables, as in nn.MultiheadAttention; here True "
                "means may look, as in scaled_dot_product_attention.",
            },
        ),
        Convention(
            "axes",
            {
                "batch, key": "padding_visible is (batch, n_key).",
                "batch, 1, key": "your padding_visible has an axis for queries, (batch, 1, n_key); ours has "
                "none.",
                "batch, 1, 1, key": "your padding_visible has axes for heads and queries, "
                "(batch, 1, 1, n_key); ours has none.",
            },
        ),
    ),
    words={"": ("query or sequence", "key")},
    trials=(
        Trial("causal, as many queries as keys", causal, {"query": 5, "key": 5}, grad=False),
        Trial("causal, more keys than queries", causal, {"query": 3, "key": 7}, grad=False),
        Trial("causal, more queries than keys", causal, {"query": 7, "key": 3}, grad=False),
        Trial("causal after a cache", causal_from, {"query": 3, "key": 7, "start": 4}, grad=False),
        Trial("causal from the middle", causal_from, {"query": 3, "key": 7, "start": 2}, grad=False),
        Trial("one query after a cache", causal_from, {"query": 1, "key": 7, "start": 5}, grad=False),
        Trial("causal beyond the keys", causal_from, {"query": 2, "key": 3, "start": 5}, grad=False),
        Trial("lengths", padding, {"batch": 3, "key": 7}, grad=False, variants=True),
        Trial("as many sequences as keys", padding, {"batch": 5, "key": 5}, grad=False),
        Trial("one sequence", padding, {"batch": 1, "key": 5}, grad=False),
        Trial("a length of 0", with_empty, {"batch": 3, "key": 5}, grad=False),
        Trial("lengths of another dtype", of_int32, {"batch": 2, "key": 5}, grad=False),
    ),
    probes=(
        Probe(
            "a neighbour's length has no say",
            neighbour_changed,
            {"batch": 3, "key": 7},
            says="the length of sequence 0 was changed: the rows of sequences 1 and 2 may not move.",
        ),
    ),
    hints=(
        "A cell of a table is True where it must be False, or the other way round.",
        "Write the table of 3 queries and 4 keys by hand and compare it with yours.",
        "Positions count from 0. A query sees its own; a length is the first position that is hidden.",
        "Compare two ranges by broadcasting: keys <= start + queries, and keys < lengths.",
    ),
    mistakes=(
        Mistake(
            "a query does not see itself",
            (
                "The diagonal is hidden, and the first query sees nothing.",
                "Look at the comparison of positions.",
                "A query may look at its own position.",
                "Compare with <=, or use tril with diagonal=start.",
            ),
            edits=(("key_pos <= query_pos", "key_pos < query_pos"),),
        ),
        Mistake(
            "a query sees one position of the future",
            (
                "One diagonal too many is visible.",
                "Look at the comparison of positions.",
                "The key after the query is already the future.",
                "Compare with key <= start + query.",
            ),
            edits=(("key_pos <= query_pos", "key_pos <= query_pos + 1"),),
        ),
        Mistake(
            "the causal table is upside down: True is the future",
            (
                "A query sees the future and itself, and not the past.",
                "Look at the comparison of positions, or at triu and tril.",
                "Keys must not stand after the query.",
                "Visible is key <= start + query.",
            ),
            edits=(("key_pos <= query_pos", "key_pos >= query_pos"),),
        ),
        Mistake(
            "the causal table is negated",
            (
                "Exactly the hidden cells of the causal table are True.",
                "Look at what True means in your causal table.",
                "True means may look, in both tables.",
                "Visible is key <= start + query.",
            ),
            edits=(("key_pos <= query_pos", "key_pos > query_pos"),),
        ),
        Mistake(
            "start is ignored",
            (
                "Right from position 0; after a cache the queries do not see it.",
                "Look at the positions of the queries.",
                "Query i stands at start + i.",
                "Add start to the positions of the queries.",
            ),
            edits=(("torch.arange(n_query)[:, None] + start", "torch.arange(n_query)[:, None]"),),
        ),
        Mistake(
            "start is subtracted",
            (
                "Right from position 0; after a cache the queries see less, not more.",
                "Look at the sign of start.",
                "Later queries stand further right, and see more keys.",
                "Query i stands at start + i.",
            ),
            edits=(("[:, None] + start", "[:, None] - start"),),
        ),
        Mistake(
            "the last query is placed at the last key",
            (
                "Right where queries and keys are equally many; else the triangle is moved.",
                "Look at where the diagonal begins.",
                "Where the queries stand is told by start, not by the sizes.",
                "Query i stands at start + i.",
            ),
            edits=(("[:, None] + start", "[:, None] + (n_key - n_query)"),),
        ),
        Mistake(
            "queries and keys change places",
            (
                "The table is transposed.",
                "Look at which axis each range runs along.",
                "Rows are queries, columns are keys.",
                "The result must be (n_query, n_key).",
            ),
            edits=(("return key_pos <= query_pos", "return (key_pos <= query_pos).T"),),
        ),
        Mistake(
            "the table is square",
            (
                "Right where queries and keys are equally many.",
                "Look at the size of the table.",
                "There is a column for each key, and a row for each query.",
                "The result must be (n_query, n_key).",
            ),
            edits=(("torch.arange(n_key)[None, :]", "torch.arange(n_query)[None, :]"),),
        ),
        Mistake(
            "numbers in the place of booleans",
            (
                "The tables hold 0 and 1, or 0.0 and 1.0.",
                "Look at the dtype of your result.",
                "A boolean table can be negated with ~ and used as an index; numbers cannot.",
                "Compare, or end with .bool().",
            ),
            edits=(
                ("return key_pos <= query_pos", "return (key_pos <= query_pos).float()"),
                ("return positions < lens", "return (positions < lens).float()"),
            ),
        ),
        Mistake(
            "one key too many is within the length",
            (
                "Each row shows one key of padding.",
                "Look at the comparison with the lengths.",
                "Positions count from 0, so the key at position `length` is already padding.",
                "Compare with position < length.",
            ),
            edits=(("positions < lens", "positions <= lens"),),
        ),
        Mistake(
            "one key too few is within the length",
            (
                "Each row hides its last valid key.",
                "Look at the comparison with the lengths.",
                "The last valid key stands at position length - 1.",
                "Compare with position < length.",
            ),
            edits=(("positions < lens", "positions < lens - 1"),),
        ),
        Mistake(
            "the padding table is negated",
            (
                "Exactly the padding is True.",
                "Look at what True means in your padding table.",
                "True means may look, in both tables.",
                "Visible is position < length.",
            ),
            edits=(("positions < lens", "positions >= lens"),),
        ),
        Mistake(
            "padding on the left",
            (
                "The last keys of a row are True, not the first.",
                "Look at which end the padding is at.",
                "A length counts from the first key.",
                "Visible is position < length.",
            ),
            edits=(("positions < lens", "positions >= n_key - lens"),),
        ),
        Mistake(
            "every sequence has the first one's length",
            (
                "All rows of the padding table are alike.",
                "Look at how the lengths meet the positions.",
                "One length is used for the whole batch.",
                "Give the lengths an axis: valid_lens[:, None].",
            ),
            edits=(("lens = valid_lens[:, None]", "lens = valid_lens[:1, None].expand(len(valid_lens), 1)"),),
        ),
        Mistake(
            "the padding table is transposed",
            (
                "Rows are keys and columns are sequences.",
                "Look at which axis each range runs along.",
                "There is a row for each sequence.",
                "The result must be (batch, n_key).",
            ),
            edits=(("return positions < lens", "return (positions < lens).T"),),
        ),
        Mistake(
            "a length of 0 still shows one key",
            (
                "Right but for an empty sequence.",
                "Look for clamp or max.",
                "A length of 0 means that all keys are padding.",
                "Compare with the length as it is.",
            ),
            edits=(("lens = valid_lens[:, None]", "lens = valid_lens[:, None].clamp(min=1)"),),
        ),
        Mistake(
            "as many columns as the longest sequence",
            (
                "Right where some sequence is full.",
                "Look at the number of columns.",
                "It is n_key, whatever the lengths are.",
                "Make the range of n_key positions.",
            ),
            edits=(("torch.arange(n_key, device", "torch.arange(int(valid_lens.max()), device"),),
        ),
        Mistake(
            "positions on the wrong device",
            (
                "Right on the CPU, an error on any other device.",
                "Look at torch.arange in padding_visible.",
                "A new tensor is on the CPU unless it is told otherwise.",
                "Write torch.arange(..., device=valid_lens.device).",
            ),
            edits=((", device=valid_lens.device", ""),),
        ),
    ),
)
