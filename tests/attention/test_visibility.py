"""Who may look at whom: every way of saying it draws the same table, whole or tile by tile."""

import pytest
import torch
from attention_cases import booleans, sizes, table_of, visibilities
from hypothesis import given
from hypothesis import strategies as st

from regard.attention.visibility import Visibility
from regard.errors import ArgumentError


def drawn(visible, n_query, n_key):
    return visible.tile(slice(0, n_query), slice(0, n_key))


def rows(visible, n_query, n_key):
    """The first table as strings of 0 and 1, to compare with one written by hand."""
    return ["".join(str(int(cell)) for cell in row) for row in drawn(visible, n_query, n_key)[0, 0]]


@st.composite
def sized(draw):
    size = draw(sizes())
    return draw(visibilities(*size)), size


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (Visibility(), ["11111"] * 3),
        (Visibility(causal=True), ["10000", "11000", "11100"]),
        (Visibility(causal=True, start=2), ["11100", "11110", "11111"]),
        (Visibility(window=2), ["11000", "11100", "01110"]),
        (Visibility(causal=True, window=2, start=1), ["11000", "01100", "00110"]),
        (Visibility(lengths=torch.tensor([2])), ["11000"] * 3),
        (Visibility(lengths=torch.tensor([[0, 5, 1]])), ["00000", "11111", "10000"]),
        (Visibility(key_mask=torch.tensor([[False, True, True, False, True]])), ["01101"] * 3),
        (
            Visibility(query_segment=torch.tensor([[7, 7, 9]]), key_segment=torch.tensor([[7, 9, 9, 7, 1]])),
            ["10010", "10010", "01100"],
        ),
    ],
    ids=["all", "causal", "cache", "window", "local", "length", "lengths", "keys", "segments"],
)
def test_a_table_is_the_one_drawn_by_hand(visible, expected):
    """Three queries and five keys, for each rule."""
    assert rows(visible, 3, 5) == expected


@given(sized())
def test_the_table_is_the_rule_applied_to_each_query_and_key(problem):
    """All parts together say what a loop over single cells says."""
    visible, size = problem
    assert torch.equal(drawn(visible, *size[2:]).expand(size), table_of(visible, *size))


@given(sized(), st.data())
def test_a_tile_is_that_block_of_the_table(problem, data):
    """Any rows and columns, none among them, drawn alone."""
    visible, (_, _, n_query, n_key) = problem
    first, last = sorted(data.draw(st.tuples(st.integers(0, n_query), st.integers(0, n_query))))
    left, right = sorted(data.draw(st.tuples(st.integers(0, n_key), st.integers(0, n_key))))
    tile = visible.tile(slice(first, last), slice(left, right))
    assert torch.equal(tile, drawn(visible, n_query, n_key)[:, :, first:last, left:right])


@given(st.data())
def test_and_shows_what_both_show(data):
    """`a & b` is the cell-wise and, whatever parts they have."""
    size = data.draw(sizes())
    a, b = (data.draw(visibilities(*size)) for _ in range(2))
    speak_of_positions = [v for v in (a, b) if v.causal or v.window or v.start]
    if len({v.start for v in speak_of_positions}) > 1:
        with pytest.raises(ArgumentError, match="must agree on where the queries start"):
            a & b
        return
    assert torch.equal(table_of(a & b, *size), table_of(a, *size) & table_of(b, *size))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64])
def test_segments_combine_without_overflow(dtype):
    """Numbers at the end of the dtype stay apart from numbers at its start."""
    high = torch.iinfo(dtype).max
    a = Visibility(
        query_segment=torch.tensor([[high, 0, high // 2 + 1]], dtype=dtype),
        key_segment=torch.tensor([[0, high, high // 2 + 1, high]], dtype=dtype),
    )
    b = Visibility(
        query_segment=torch.tensor([[1, 0, 1]], dtype=dtype),
        key_segment=torch.tensor([[0, 1, 1, high]], dtype=dtype),
    )
    assert rows(a & b, 3, 4) == ["0100", "1000", "0010"]


@given(sized())
def test_simplified_keeps_the_table(problem):
    """Only parts that hide nothing at these sizes are dropped."""
    visible, size = problem
    simple = visible.simplified(*size[2:])
    assert torch.equal(table_of(simple, *size), table_of(visible, *size))


@pytest.mark.parametrize(
    ("visible", "n_query", "n_key"),
    [
        (Visibility(causal=True, start=6), 1, 7),
        (Visibility(causal=True, start=6), 3, 7),
        (Visibility(window=11), 5, 11),
        (Visibility(window=11, causal=True, start=4), 7, 5),
    ],
    ids=["one step with a cache", "steps with a cache", "wide window", "wide causal window"],
)
def test_simplified_drops_what_hides_nothing(visible, n_query, n_key):
    """A decoding step sees the whole cache, so that a kernel needs no mask for it."""
    assert visible.simplified(n_query, n_key).everything


@given(sized())
def test_positions_outside_the_key_range_are_hidden_from_all_rows(problem):
    """What `key_range` leaves out need not be computed."""
    visible, (batch, n_head, n_query, n_key) = problem
    table = table_of(visible, batch, n_head, n_query, n_key)
    for first in range(n_query):
        for last in range(first + 1, n_query + 1):
            cols = visible.key_range(slice(first, last), n_key)
            assert 0 <= cols.start <= cols.stop <= n_key
            outside = torch.ones(n_key, dtype=torch.bool)
            outside[cols] = False
            assert not table[:, :, first:last, outside].any()


@given(sized())
def test_rows_that_see_are_the_rows_of_the_table_with_a_key(problem):
    """None is only said where every row sees something."""
    visible, size = problem
    sees, expected = visible.rows_that_see(*size[2:]), table_of(visible, *size).any(-1)
    assert torch.equal(torch.ones_like(expected) if sees is None else sees.expand(size[:3]), expected)


def test_without_keys_no_row_sees():
    """No keys: False for every query; no queries: nothing to say."""
    assert Visibility(causal=True).rows_that_see(3, 0).tolist() == [[[False] * 3]]
    assert Visibility(causal=True).rows_that_see(0, 3) is None


@given(sized())
def test_combined_key_mask_is_what_keys_and_lengths_leave(problem):
    """One row for each sequence, without the parts that look at the query."""
    visible, (batch, _, _, n_key) = problem
    by_key = Visibility(lengths=visible.lengths, key_mask=visible.key_mask)
    if visible.lengths is not None and visible.lengths.dim() == 2:
        by_key = Visibility(key_mask=visible.key_mask)
    keys = visible.combined_key_mask(n_key)
    assert (keys is not None) == visible.by_key
    if keys is not None:
        assert torch.equal(keys.expand(batch, n_key), table_of(by_key, batch, 1, 1, n_key)[:, 0, 0])


LEFT = torch.tensor([[False, False] + [True] * 9, [True] * 11])
RIGHT = torch.tensor([[True] * 11, [True] * 5 + [False] * 6, [True] * 8 + [False] * 3])


@pytest.mark.parametrize(
    "visible",
    [
        Visibility(),
        Visibility(causal=True),
        Visibility(causal=True, start=4),
        Visibility(causal=True, window=3),
        Visibility(causal=True, start=4, window=3),
        Visibility(key_mask=LEFT),
        Visibility(key_mask=RIGHT),
        Visibility(causal=True, key_mask=LEFT),
        Visibility(causal=True, key_mask=LEFT[:1]),
        Visibility(causal=True, key_mask=RIGHT),
        Visibility(causal=True, window=3, key_mask=RIGHT),
        Visibility(causal=True, start=4, key_mask=RIGHT),
        Visibility(causal=True, start=4, key_mask=LEFT),
    ],
    ids=(
        "all causal cache local local-cache left right causal-left all-causal-left causal-right local-right "
        "cache-right cache-left"
    ).split(),
)
def test_a_table_is_recognised_as_the_rule_that_drew_it(visible):
    """from_dense finds causality, where the queries start, window and padding, and keeps no table."""
    n_query = 7 if visible.start else 11
    table = drawn(visible, n_query, 11)
    found = Visibility.from_dense(table)
    assert found.dense is None
    assert (found.causal, found.window) == (visible.causal, visible.window)
    assert found.start == visible.start
    assert torch.equal(drawn(found, n_query, 11).expand(table.shape), table)


@given(sized())
def test_from_dense_draws_the_table_it_was_given(problem):
    """Recognised or not, the table of a rule comes back cell by cell."""
    visible, size = problem
    table = table_of(visible, *size)
    found = Visibility.from_dense(table)
    assert torch.equal(table_of(found, *size), table)


@given(st.integers(0, 5), st.integers(0, 5), st.data())
def test_from_dense_keeps_any_table(n_query, n_key, data):
    """Random tables of two and three dimensions, empty ones too."""
    table = data.draw(booleans(n_query, n_key))
    assert torch.equal(drawn(Visibility.from_dense(table), n_query, n_key)[0, 0], table)
    table = data.draw(booleans(2, n_query, n_key))
    found = drawn(Visibility.from_dense(table), n_query, n_key)
    assert torch.equal(found.expand(2, 1, n_query, n_key)[:, 0], table)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("low", [-float("inf"), -1e9, "min"])
def test_an_additive_mask_hides_with_any_low_number(dtype, low):
    """-inf, -1e9 and the dtype's minimum all mean hidden; 0 means visible, and no bias remains."""
    low = torch.finfo(dtype).min if low == "min" else low
    hidden = torch.ones(5, 7, dtype=torch.bool).triu(1)
    visible, bias = Visibility.from_additive(torch.zeros(5, 7).double().masked_fill(hidden, low).to(dtype))
    assert bias is None
    assert visible.causal
    assert visible.dense is None
    assert torch.equal(drawn(visible, 5, 7)[0, 0], ~hidden)


def test_an_additive_mask_is_taken_apart():
    """What is -inf hides, and so does -10000, whose weight is 0 for every score; the rest is a bias."""
    mask = torch.tensor([[[[0.0, -1.5, -float("inf")], [-10000.0, 2.0, -float("inf")]]]])
    visible, bias = Visibility.from_additive(mask)
    assert rows(visible, 2, 3) == ["110", "010"]
    assert bias.tolist() == [[[[0.0, -1.5, 0.0], [0.0, 2.0, 0.0]]]]


def test_the_masks_of_multihead_attention_hide_where_true():
    """A boolean attn_mask and key_padding_mask turn round and combine; three dimensions are batch * head."""
    causal = torch.ones(3, 3, dtype=torch.bool).triu(1)
    padding = torch.tensor([[False, False, True], [False, False, False]])
    visible, bias = Visibility.from_torch_masks(causal, padding)
    assert bias is None
    assert visible.causal
    table = drawn(visible, 3, 3)
    assert table[:, 0].int().tolist() == [
        [[1, 0, 0], [1, 1, 0], [1, 1, 0]],
        [[1, 0, 0], [1, 1, 0], [1, 1, 1]],
    ]
    tables = torch.arange(2 * 5 * 3 * 7).reshape(10, 3, 7) % 4 == 0
    visible, _ = Visibility.from_torch_masks(tables, n_head=5)
    assert torch.equal(drawn(visible, 3, 7), ~tables.reshape(2, 5, 3, 7))


def test_a_float_padding_mask_is_hidden_and_bias_both():
    """nn.MultiheadAttention adds a float key_padding_mask: what is finite must be kept."""
    attn_mask = torch.tensor([[0.0, 1.0, 2.0], [0.5, 0.0, -float("inf")]])
    padding = torch.tensor([[0.0, 3.0, -float("inf")]])
    visible, bias = Visibility.from_torch_masks(attn_mask, padding)
    assert rows(visible, 2, 3) == ["110", "110"]
    assert bias.tolist() == [[[[0.0, 4.0, 2.0], [0.5, 3.0, 0.0]]]]
    _, bias = Visibility.from_torch_masks(key_padding_mask=padding)
    assert bias.tolist() == [[[[0.0, 3.0, 0.0]]]]
