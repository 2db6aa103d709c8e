"""Layers of a trace and the trace itself: any weight, recovered from O(N) numbers."""

import math
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.attention import attend_linear, feature_map
from regard.attention.scores import DenseBias, DistanceBias, ScoreRule, SlopeBias, alibi_slopes
from regard.attention.softmax import attend
from regard.attention.visibility import Visibility
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.tracing import layers
from regard.tracing.layers import DenseLayerTrace, LayerTrace, LinearLayerTrace
from regard.tracing.traces import Trace

BATCH, N_HEAD, N_QUERY, N_KEY, QK_DIM = 2, 6, 19, 23, 5
EVERYTHING = slice(0, N_QUERY), slice(0, N_KEY)


def some_rules():
    """Every kind of rule a layer can have."""
    padding = torch.ones(BATCH, N_KEY, dtype=torch.bool)
    padding[1, 17:] = False
    pairs = torch.rand(BATCH, 1, N_QUERY, N_KEY) < 0.5
    segment = torch.arange(N_KEY).div(7, rounding_mode="floor").expand(BATCH, -1)
    return {
        "plain": ScoreRule(),
        "scale": ScoreRule(scale=1.7),
        "causal": ScoreRule(visible=Visibility(causal=True, start=N_KEY - N_QUERY)),
        "window": ScoreRule(visible=Visibility(causal=True, start=4, window=3)),
        "padding": ScoreRule(visible=Visibility(key_mask=padding)),
        "lengths": ScoreRule(visible=Visibility(lengths=torch.tensor([0, 11]))),
        "segments": ScoreRule(
            visible=Visibility(
                query_segment=segment[:, :N_QUERY].contiguous(), key_segment=segment.contiguous()
            )
        ),
        "dense": ScoreRule(visible=Visibility(dense=pairs)),
        "distance": ScoreRule(bias=DistanceBias(torch.randn(N_HEAD, N_QUERY + N_KEY - 1), N_QUERY - 1)),
        "slopes": ScoreRule(bias=SlopeBias(alibi_slopes(N_HEAD))),
        "table": ScoreRule(bias=DenseBias(torch.randn(BATCH, N_HEAD, N_QUERY, N_KEY))),
        "softcap": ScoreRule(softcap=0.7),
        "additive": ScoreRule(additive=torch.randn(QK_DIM)),
    }


RULES = list(some_rules())
N_TENSOR = {"segments": 2} | dict.fromkeys(
    ("padding", "lengths", "dense", "distance", "slopes", "table", "additive"), 1
)


def plain_weights(q, k, rule):
    """Softmax over all scores, in float64: nothing is shared with the trace but what a score is."""
    scores = rule.scores(q.double(), k.double())
    return torch.softmax(scores, -1).nan_to_num(0.0).float(), scores


def layer_of(rule, n_kv_head=3, keep_v=False):
    q, k, v = (
        torch.randn(BATCH, n, size, QK_DIM) for n, size in ((N_HEAD, N_QUERY), *((n_kv_head, N_KEY),) * 2)
    )
    return LayerTrace("layer", q, k, attend(q, k, v, rule).lse, rule, v if keep_v else None)


@pytest.mark.parametrize("n_kv_head", [6, 3, 1], ids=["multi-head", "grouped", "multi-query"])
@pytest.mark.parametrize("kind", RULES)
def test_a_tile_is_that_block_of_the_full_softmax(kind, n_kv_head):
    """A tile recovered from the log-sum-exp is that block of the softmax, whatever the rule."""
    rule = some_rules()[kind]
    layer = layer_of(rule, n_kv_head)
    wanted, scores = plain_weights(layer.q, layer.k, rule)
    largest = float(scores[scores > -math.inf].abs().max())
    tile = layer.tile(4, slice(5, 16), slice(2, 19), batch=1)
    assert tile.shape == (11, 17)
    assert torch.allclose(tile, wanted[1, 4, 5:16, 2:19], rtol=0, atol=1e-6 * max(1, largest / 10))
    assert torch.allclose(layer.block(None, *EVERYTHING), wanted, rtol=0, atol=1e-6 * max(1, largest / 10))


@pytest.mark.parametrize("kind", RULES)
def test_rows_columns_and_matrices_are_parts_of_one_table(kind, monkeypatch):
    """`row`, `column`, `weights` and `strips` give the same numbers as the table they are cut from."""
    layer = layer_of(some_rules()[kind])
    table = layer.block(None, *EVERYTHING)
    # One head, or a part of it, may be summed in another order than all: a rounding of a score, no more.
    assert torch.allclose(layer.weights(2, batch=1), table[1, 2], atol=1e-6)
    assert torch.allclose(layer.row(3, 7), table[0, 3, 7], atol=1e-6)
    assert torch.allclose(layer.column(5, 11, batch=1), table[1, 5, :, 11], atol=1e-6)
    assert torch.allclose(layer.row(-1, -1, batch=-1), table[-1, -1, -1], atol=1e-6)
    monkeypatch.setattr(layers, "MOST_ROWS", 5)
    strips = list(layer.strips(batch=1))
    assert [rows.stop - rows.start for rows, _, _ in strips] == [5, 5, 5, 4]
    for rows, cols, part in strips:
        assert torch.allclose(part, table[1][:, rows, cols], atol=1e-6)
        assert table[1][:, rows].sum() == pytest.approx(table[1][:, rows, cols].sum())


@pytest.mark.parametrize("kind", RULES)
def test_sums_of_columns_are_those_of_the_table(kind):
    """Of all heads and of one, of all rows and of some; a layer of given weights sums its own."""
    layer = layer_of(some_rules()[kind])
    table = layer.block(None, *EVERYTHING)
    trace = Trace((layer, DenseLayerTrace("dense", table)))
    for name in trace.names:
        torch.testing.assert_close(trace.column_sums(name, batch=1), table[1].sum(1), rtol=0, atol=1e-5)
        some = trace.column_sums(name, 4, batch=1, rows=slice(5, 16))
        torch.testing.assert_close(some, table[1, 4, 5:16].sum(0), rtol=0, atol=1e-5)


def test_rows_that_see_all_alike_are_in_the_sums_of_columns():
    """Rows of padding that a finite number hides, which no rule explains."""
    layer = layer_of(some_rules()["causal"])
    alike = torch.zeros(BATCH, 1, N_QUERY, dtype=torch.bool)
    alike[:, :, 3] = True
    marked = replace(layer, uniform_rows=alike)
    torch.testing.assert_close(marked.column_sums(batch=1), marked.block(None, *EVERYTHING)[1].sum(1))
    assert not torch.allclose(marked.column_sums(batch=1), layer.column_sums(batch=1))


@pytest.mark.parametrize("kind", RULES)
def test_visible_is_where_the_rule_lets_look(kind):
    """The boolean tile equals the rule's own table, cut to one sequence and head."""
    layer = layer_of(some_rules()[kind])
    rows, cols = slice(3, 14), slice(1, 20)
    wanted = layer.rule.visible.tile(rows, cols).expand(BATCH, N_HEAD, -1, -1)
    for batch, head in ((0, 0), (1, 5)):
        assert torch.equal(layer.visible(head, rows, cols, batch), wanted[batch, head])


@given(
    n_row=st.integers(1, 25),
    n_col=st.integers(1, 25),
    first=st.integers(0, 6),
    how=st.sampled_from(["max", "mean"]),
    kind=st.sampled_from(["plain", "causal", "window", "padding"]),
)
def test_pooling_is_the_maximum_or_mean_of_each_block(n_row, n_col, first, how, kind):
    """Pooled tiles equal the blocks of the whole matrix, reduced one by one."""
    layer = layer_of(some_rules()[kind])
    rows, cols = slice(first, 17), slice(2, 23 - first)
    got = layer.pooled(2, n_row, n_col, how, rows, cols, batch=1)
    table = layer.weights(2, batch=1)[rows, cols].numpy()
    row_parts = np.array_split(np.arange(table.shape[0]), min(n_row, table.shape[0]))
    col_parts = np.array_split(np.arange(table.shape[1]), min(n_col, table.shape[1]))
    assert got.shape == (len(row_parts), len(col_parts))
    # Which blocks are the larger ones is free: the ends are read off the same floor division.
    ends = [
        [size * index // count for index in range(count + 1)]
        for size, count in ((table.shape[0], len(row_parts)), (table.shape[1], len(col_parts)))
    ]
    for i in range(len(row_parts)):
        for j in range(len(col_parts)):
            block = table[ends[0][i] : ends[0][i + 1], ends[1][j] : ends[1][j + 1]]
            wanted = block.max() if how == "max" else block.mean()
            assert got[i, j] == pytest.approx(float(wanted), abs=2e-6)


@pytest.mark.parametrize("how", ["max", "mean"])
def test_pooling_all_heads_is_pooling_each(how):
    """Without a head, `pooled` stacks what it gives head by head."""
    layer = layer_of(some_rules()["causal"])
    each = torch.stack([layer.pooled(head, 4, 7, how, batch=1) for head in range(N_HEAD)])
    assert torch.allclose(layer.pooled(None, 4, 7, how, batch=1), each, atol=1e-6)


def test_pooling_never_forms_the_whole_matrix(monkeypatch):
    """The largest block that pooling asks for stays far below query x key."""
    q = torch.randn(1, 1, 3001, 4)
    rule = ScoreRule(visible=Visibility(causal=True))
    layer = LayerTrace("long", q, q, attend(q, q, q, rule).lse, rule)
    areas = []
    original = LayerTrace.block
    monkeypatch.setattr(
        LayerTrace,
        "block",
        lambda self, head, rows, cols, *at: (
            areas.append((rows.stop - rows.start) * (cols.stop - cols.start))
            or original(self, head, rows, cols, *at)
        ),
    )
    layer.pooled(0, 60, 60)
    assert max(areas) <= 1 << 20
    assert sum(areas) < 0.7 * 3001 * 3001  # the future is not computed


def test_the_numbers_behind_a_weight_make_it():
    """score = scale * sum(products) + bias, weight = exp(score - lse), by hand."""
    rule = ScoreRule(
        scale=0.3, bias=SlopeBias(alibi_slopes(N_HEAD)), visible=Visibility(causal=True, start=4)
    )
    layer = layer_of(rule)
    parts = layer.score_parts(4, 13, 11, batch=1)
    q, k = layer.q[1, 4, 13], layer.k[1, 2, 11]
    assert parts.products == pytest.approx((q * k).tolist(), abs=1e-6)
    assert parts.similarity == pytest.approx(0.3 * float(q @ k), abs=1e-6)
    assert parts.bias == pytest.approx(-float(alibi_slopes(N_HEAD)[4]) * 6, abs=1e-6)
    assert parts.score == pytest.approx(parts.similarity + parts.bias, abs=1e-6)
    assert parts.weight == pytest.approx(math.exp(parts.score - parts.lse), rel=1e-5)
    assert parts.weight == pytest.approx(float(layer.weights(4, batch=1)[13, 11]), abs=1e-6)
    hidden = layer.score_parts(0, 1, 22)
    assert (hidden.visible, hidden.score, hidden.weight) == (False, -math.inf, 0.0)


def test_a_row_that_sees_nothing_has_weights_of_0():
    """No NaN where scores and lse are both -inf."""
    layer = layer_of(some_rules()["lengths"])
    assert bool((layer.lse[0] == -math.inf).all())
    assert bool((layer.block(None, *EVERYTHING)[0] == 0).all())


def test_hidden_garbage_does_not_reach_a_weight():
    """NaN in a hidden key leaves every weight finite."""
    rule = some_rules()["padding"]
    layer = layer_of(rule)
    layer.k[1, :, 17:] = math.nan
    table = layer.block(None, *EVERYTHING)
    assert bool(table.isfinite().all())
    assert bool((table[1, :, :, 17:] == 0).all())


@pytest.mark.parametrize("name", ["elu1", "relu", "quadratic", "favor"])
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_linear_attention_is_recovered_by_tile(name, causal):
    """The weights of a linear layer give its output, and a tile is a block of them."""
    phi = feature_map(name, qk_dim=QK_DIM, n_feature=31)
    keys = torch.ones(BATCH, N_KEY, dtype=torch.bool)
    keys[1, 19:] = False
    q, k, v = (torch.randn(BATCH, n, size, QK_DIM) for n, size in ((N_HEAD, N_QUERY), (3, N_KEY), (3, N_KEY)))
    layer = LinearLayerTrace.of("linear", q, k, v, phi, causal=causal, key_mask=keys)
    table = layer.block(None, *EVERYTHING)
    out = (table.unflatten(1, (3, 2)) @ v[:, :, None]).flatten(1, 2)
    wanted = attend_linear(q, k, v, phi, causal=causal, key_mask=keys).out
    assert torch.allclose(out, wanted, atol=1e-4)
    assert torch.allclose(
        layer.tile(4, slice(5, 16), slice(2, 19), batch=1), table[1, 4, 5:16, 2:19], atol=1e-6
    )
    seen = layer.visible(4, *EVERYTHING, 1)
    assert bool((table[1, 4][~seen] == 0).all())
    assert int(seen.sum()) == (sum(min(i + 5, 19) for i in range(N_QUERY)) if causal else N_QUERY * 19)
    assert torch.allclose(layer.pooled(4, 3, 4, batch=1), layer.pooled(None, 3, 4, batch=1)[4])


@pytest.mark.parametrize("dim", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("as_numpy", [False, True], ids=["torch", "numpy"])
def test_weights_of_1_to_5_dimensions_become_a_trace(dim, as_numpy):
    """The missing leading dimensions are 1, and every weight is where it was."""
    sizes = (2, 3, 5, 7, 11)[5 - dim :]
    weights = torch.rand(sizes)
    found = Trace.from_weights(weights.numpy() if as_numpy else weights)
    whole = weights.reshape((1,) * (5 - dim) + sizes)
    assert (found.n_layer, *found.layers[0].shape) == tuple(whole.shape)
    assert torch.equal(found.weights(-1, -1, -1), whole[-1, -1, -1])


def test_given_labels_stand_at_their_sides():
    """Rows label queries, columns keys; a square needs only one list, and positions stand for none."""
    weights = torch.rand(2, 3)
    found = Trace.from_weights(weights, rows=["a", "b"], cols=["x", "y", "z"])
    assert (found.query_tokens(0), found.key_tokens(0)) == (("a", "b"), ("x", "y", "z"))
    square = Trace.from_weights(torch.rand(2, 2), rows=["a", "b"])
    assert (square.query_tokens(0), square.key_tokens(0)) == (("a", "b"), ("a", "b"))
    assert Trace.from_weights(weights).key_tokens(0) == ("0", "1", "2")


@pytest.mark.parametrize("kind", ["causal", "padding", "softcap"])
def test_all_heads_and_all_sequences_have_axes(kind):
    """None is an axis: of heads, of sequences, of both; NumPy has the same numbers."""
    layer = layer_of(some_rules()[kind])
    table, trace = layer.block(None, *EVERYTHING), Trace((layer,))
    assert torch.equal(trace.weights(0, None, None), table)
    torch.testing.assert_close(trace.weights(0, None, 1), table[1])
    torch.testing.assert_close(trace.weights(0, -1, None), table[:, -1])
    torch.testing.assert_close(trace.weights("layer", 4), table[0, 4])
    given = trace.to_numpy(0, batch=None)
    assert given.shape == (BATCH, N_HEAD, N_QUERY, N_KEY)
    assert np.array_equal(given, table.numpy())
    half = Trace((DenseLayerTrace("half", table.bfloat16()),)).to_numpy(0, 3)
    assert half.dtype == np.float32


class FakePandas:
    """What `dataframe` asks of pandas."""

    @staticmethod
    def DataFrame(columns):
        return columns


def test_weights_become_rows_of_a_table(monkeypatch):
    """One for each cell that may be looked at, with both tokens; without pandas an error says what to do."""
    trace = Trace((layer_of(some_rules()["causal"]),), (("a",) * N_QUERY,) * BATCH)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UnsupportedError, match="pip install pandas"):
        trace.to_dataframe(0)
    monkeypatch.setitem(sys.modules, "pandas", FakePandas)
    table = trace.to_dataframe(0, 4, batch=1)
    visible = trace.layers[0].visible(4, *EVERYTHING, 1)
    assert len(table["weight"]) == int(visible.sum()) < N_QUERY * N_KEY
    at = table["query"], table["key"]
    assert torch.allclose(torch.tensor(table["weight"]), trace.weights(0, 4, 1)[at])
    assert (set(table["head"]), set(table["query_token"])) == ({4}, {"a"})
    assert table["key_token"] == [str(key) for key in table["key"]]  # positions, where tokens do not fit
    assert len(trace.to_dataframe(0)["head"]) == N_HEAD * len(table["head"])


def test_a_whole_matrix_that_is_large_warns_with_its_size(monkeypatch):
    """The warning names the sizes and what to use instead."""
    monkeypatch.setattr("regard.tracing.layers.LARGE", 100)
    layer = DenseLayerTrace("dense", torch.rand(1, 1, 11, 13))
    with pytest.warns(UserWarning, match=r"11 x 13 weights.*use tile, row, column or pooled"):
        layer.weights(0)


def test_bytes_count_shared_tensors_once():
    """A visibility shared by two layers is counted once."""
    rule = some_rules()["padding"]
    first = layer_of(rule)
    second = LayerTrace("second", first.q.clone(), first.k.clone(), first.lse.clone(), rule)
    one = (first.q.numel() + first.k.numel() + first.lse.numel()) * 4
    assert Trace((first, second)).bytes == 2 * one + BATCH * N_KEY


@pytest.mark.parametrize("kind", RULES)
def test_mapping_a_rule_reaches_every_tensor(kind):
    """A changed copy of a rule has the same numbers in tensors of its own."""
    rule = some_rules()[kind]
    before, after = rule.tensors, rule.mapped(torch.clone).tensors
    assert len(before) == N_TENSOR.get(kind, 0)
    for tensor, copy in zip(before, after, strict=True):
        assert torch.equal(tensor, copy)
        assert tensor.data_ptr() != copy.data_ptr()


def test_indices_outside_are_refused():
    """Batch, head, query, key and layer are checked against what there is."""
    layer = layer_of(ScoreRule())
    for batch, head in ((2, 0), (-3, 0), (0, 6), (0, -7)):
        with pytest.raises(ArgumentError, match="counted from 0"):
            layer.tile(head, slice(0, 1), slice(0, 1), batch)
    with pytest.raises(ArgumentError, match="there is no query 19"):
        layer.row(0, 19)
    with pytest.raises(ArgumentError, match="there is no key 23"):
        layer.column(0, 23)
    with pytest.raises(ArgumentError, match="there is no layer 'other'"):
        Trace((layer,)).layer("other")
    with pytest.raises(ArgumentError, match="there is no layer 1"):
        Trace((layer,)).tile(1, 0, slice(0, 1), slice(0, 1))
    with pytest.raises(ArgumentError, match="without a step"):
        layer.tile(0, slice(0, 4, 2), slice(0, 1))


def test_names_are_unique():
    """Two layers of one name could not be told apart."""
    layer = layer_of(ScoreRule())
    with pytest.raises(ArgumentError, match="occur more than once"):
        Trace((layer, layer))


def test_labels_are_counted():
    """A list of labels of another length than its side is refused."""
    with pytest.raises(ShapeError, match="3 labels of rows for 2 rows"):
        Trace.from_weights(torch.rand(2, 5), rows="abc", cols="vwxyz")
    with pytest.raises(ShapeError, match="rows alone label a square"):
        Trace.from_weights(torch.rand(2, 5), rows="ab")
