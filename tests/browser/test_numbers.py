"""Every view shows the numbers of the trace: from a file, where the browser recovers them, or a server."""

import pytest
import torch

from regard.attention import feature_map
from regard.attention.scores import DenseBias, DistanceBias, ScoreRule, SlopeBias
from regard.attention.softmax import attend
from regard.attention.visibility import Visibility
from regard.tracing.layers import DenseLayerTrace, LayerTrace, LinearLayerTrace
from regard.tracing.traces import Trace

# The browser multiplies float32 numbers in float64: it differs by what torch rounds, scores of some 5.
ERROR = 2e-6
QUERY, KEY, DIM, HEAD = 7, 11, 5, 6

RULES = {
    "plain": ScoreRule(),
    "causal from a cache": ScoreRule(visible=Visibility(causal=True, start=4)),
    "window": ScoreRule(visible=Visibility(window=3, start=2)),
    "padding": ScoreRule(visible=Visibility(key_mask=torch.arange(KEY)[None] % 4 != 1)),
    "lengths": ScoreRule(visible=Visibility(lengths=torch.arange(QUERY)[None] + 2)),
    "segments": ScoreRule(
        visible=Visibility(
            query_segment=torch.arange(QUERY)[None] // 3, key_segment=torch.arange(KEY)[None] // 4
        )
    ),
    "pairs": ScoreRule(visible=Visibility(dense=torch.rand(1, HEAD, QUERY, KEY) > 0.4)),
    "distance bias": ScoreRule(bias=DistanceBias(torch.randn(HEAD, QUERY + KEY), QUERY), scale=1.0),
    "slopes": ScoreRule(bias=SlopeBias(torch.rand(HEAD))),
    "dense bias": ScoreRule(bias=DenseBias(torch.randn(1, HEAD, QUERY, KEY))),
    "softcap": ScoreRule(softcap=2.0),
    "additive": ScoreRule(additive=torch.randn(DIM)),
}


def softmax_trace(rule, n_kv_head=3):
    """One layer of grouped heads with its values."""
    q, k = torch.randn(1, HEAD, QUERY, DIM), torch.randn(1, n_kv_head, KEY, DIM)
    v = torch.randn(1, n_kv_head, KEY, DIM)
    return Trace((LayerTrace("layer", q, k, attend(q, k, v, rule).lse, rule, v, kind="cross"),))


def linear_trace():
    q, k, v = torch.randn(1, HEAD, KEY, DIM), torch.randn(1, 2, KEY, DIM), torch.randn(1, 2, KEY, DIM)
    layer = LinearLayerTrace.of("layer", q, k, v, feature_map("elu1"), causal=True, keep_v=True)
    return Trace((layer,))


def dense_trace():
    values = torch.rand(1, HEAD, QUERY, KEY)
    return Trace((DenseLayerTrace("layer", values, "cross", Visibility(causal=True, start=4)),))


def block(page, head, n_row, n_col, valued=False):
    """What the browser makes of a head, NaN where hidden."""
    values = page.evaluate(
        """async ([head, nRow, nCol, valued]) => {
            const {queries, keys} = regard.source.meta.layers[0];
            const region = {layer: 0, head, r0: 0, r1: queries, c0: 0, c1: keys, nRow, nCol, valued};
            return [...(await regard.source.tile(region)).values].map(v => Number.isNaN(v) ? null : v);
        }""",
        [head, n_row, n_col, valued],
    )
    return torch.tensor([float("nan") if v is None else v for v in values]).reshape(n_row, n_col)


def expected(trace, head):
    """The trace's weights, NaN where hidden."""
    layer = trace.layers[0]
    visible = layer.visible(head, slice(None), slice(None))
    return layer.weights(head).masked_fill(~visible, float("nan"))


@pytest.mark.parametrize("mechanism", [*RULES, "linear", "dense"])
def test_the_browser_recovers_every_weight(looker, exported, mechanism):
    """From q, k and lse in the file the browser makes the weights that the trace gives, whatever the rule."""
    made = {"linear": linear_trace, "dense": dense_trace}.get(mechanism)
    trace = softmax_trace(RULES[mechanism]) if made is None else made()
    looker.open(exported(trace))
    layer = trace.layers[0]
    for head in range(HEAD):
        found = block(looker.page, head, layer.n_query, layer.n_key)
        torch.testing.assert_close(found, expected(trace, head), rtol=0, atol=ERROR, equal_nan=True)


@pytest.mark.parametrize("valued", [False, True], ids=["weights", "times the value's length"])
def test_a_pooled_block_is_its_largest_visible_weight(looker, exported, valued):
    """An overview in the browser is that of Python: the largest of each block, NaN where all is hidden."""
    from regard.view.document import Document

    trace = softmax_trace(RULES["causal from a cache"])
    looker.open(exported(trace))
    found = block(looker.page, 4, 3, 5, valued)
    theirs = Document(trace).tile(0, 4, slice(0, QUERY), slice(0, KEY), 3, 5, valued=valued)
    torch.testing.assert_close(
        found, torch.from_numpy(theirs), rtol=0, atol=5e-3 if valued else ERROR, equal_nan=True
    )


@pytest.fixture(params=["file", "server"])
def opened(request, looker, exported, served, made):
    """The same sentence and model in a file and from the server, at layer 3, head 7."""
    if request.param == "file":
        looker.open(exported(made, layer=3, head=7))
    else:
        looker.open(served[1](layer=3, head=7))
    return looker


def test_the_tooltip_says_the_weight_of_its_cell(opened, made):
    """Hovering reads rows down and columns across: a transposed map would say other numbers."""
    weights = made.weights(3, 7)
    for row, col in ((2, 9), (9, 2), (0, 0), (13, 5)):
        assert opened.hovered(row, col) == pytest.approx(weights[row, col].item(), abs=ERROR)


LIGHT = [
    (252, 252, 254),
    (214, 228, 244),
    (148, 188, 226),
    (78, 134, 196),
    (52, 80, 160),
    (42, 34, 104),
    (22, 10, 48),
]


def colour_of(weight, top, scale):
    share = {"linear": weight / top, "sqrt": (weight / top) ** 0.5}[scale]
    place = share * (len(LIGHT) - 1)
    low = min(len(LIGHT) - 2, int(place))
    return [a + (place - low) * (b - a) for a, b in zip(LIGHT[low], LIGHT[low + 1], strict=True)]


@pytest.mark.parametrize("scale", ["linear", "sqrt"])
def test_a_pixel_has_the_colour_of_its_weight(opened, made, scale):
    """Colours run from white at 0 to the darkest at the head's largest weight."""
    opened.change(scale=scale)
    weights = made.weights(3, 7)
    top = weights.max().item()
    for row, col in ((1, 8), (8, 1), (5, 5)):
        found = opened.pixel(row, col)
        wanted = colour_of(weights[row, col].item(), top, scale)
        # 256 colours: half a step is at most 3 of 255 where the palette is steepest
        assert found == pytest.approx(wanted, abs=3)


def test_why_shows_the_sum_and_the_weight(opened, made):
    """The panel's products sum to the score of the library, and its weight is the trace's."""
    opened.page.mouse.click(*opened.place(4, 6))
    table = opened.page.wait_for_selector("table.sums")
    parts = made.layers[3].score_parts(7, 4, 6)
    assert float(table.get_attribute("data-weight")) == pytest.approx(parts.weight, abs=ERROR)
    assert float(table.get_attribute("data-sum")) * parts.scale == pytest.approx(parts.similarity, abs=1e-5)
    assert f"{parts.weight:.3f}" in table.inner_text()


def sums(page, side):
    return [float(t) for t in page.locator(f".column.{side} .sum").all_inner_texts() if t]


def test_lines_write_the_weights_of_the_hovered_token(opened, made):
    """Hovering a query lists its weight on every key, and its own sum of 1."""
    opened.change(view="lines")
    opened.page.hover(".column.query .token >> nth=5")
    assert sums(opened.page, "key") == pytest.approx(made.row(3, 7, 5).tolist(), abs=5e-4)
    assert sums(opened.page, "query") == pytest.approx([1.0], abs=5e-4)


def test_lines_of_several_tokens_and_heads_are_summed(opened, made):
    """Two chosen tokens in two heads: each key has the sum of four weights."""
    opened.change(view="lines", more=[[1, 2]], chosen=[4, 9])
    opened.page.mouse.move(5, 5)
    wanted = sum(made.row(layer, head, query) for layer, head in ((3, 7), (1, 2)) for query in (4, 9))
    assert sums(opened.page, "key") == pytest.approx(wanted.tolist(), abs=5e-4)
    assert "their weights are summed" in opened.page.inner_text(".lines")


def test_lines_without_special_tokens_sum_to_one_and_say_so(opened, made):
    """Special tokens are struck out, the rest is scaled to 1, and a note says these are not the model's."""
    opened.change(view="lines", noSpecial=True, chosen=[5])
    opened.page.mouse.move(5, 5)
    row = made.row(3, 7, 5).clone()
    row[0] = row[-1] = 0  # <cls> and <sep>
    assert sums(opened.page, "key") == pytest.approx((row / row.sum()).tolist(), abs=5e-4)
    assert opened.page.locator(".token.left").count() == 2
    assert "not the model's own weights" in opened.page.inner_text(".lines")


def test_words_sum_keys_and_average_queries(opened, made):
    """The word "be" of two bytes looks with the mean of its rows, at words with the sum of their columns."""
    opened.change(view="lines", words=True)
    names = opened.page.locator(".column.query .name").all_inner_texts()
    assert names == ["<cls>", "to", "␣", "be", "␣", "or", "␣", "not", "<sep>"]
    opened.page.hover(".column.query .token >> nth=3")
    weights = made.weights(3, 7)[4:6].mean(0)
    wanted = [
        weights[a:b].sum().item()
        for a, b in ((0, 1), (1, 3), (3, 4), (4, 6), (6, 7), (7, 9), (9, 10), (10, 13), (13, 14))
    ]
    assert sums(opened.page, "key") == pytest.approx(wanted, abs=5e-4)


@pytest.mark.parametrize("reading", ["looks at", "is looked at by"])
def test_text_is_shaded_by_row_or_column(opened, made, reading):
    """Hovering a token gives every other the weight of its row, or of its column."""
    opened.change(view="text", reading=reading)
    opened.page.hover(".word[data-index='6']")
    opened.page.wait_for_selector(".word[data-weight]")
    said = [float(t.get_attribute("data-weight")) for t in opened.page.locator(".word").all()]
    wanted = made.row(3, 7, 6) if reading == "looks at" else made.column(3, 7, 6)
    assert said == pytest.approx(wanted.tolist(), abs=ERROR)


def test_masked_cells_say_that_they_are(looker, exported):
    """A cell that may not be looked at has no weight, but the colour and the word of masked ones."""
    trace = softmax_trace(RULES["causal from a cache"])
    looker.open(exported(trace))
    assert looker.hovered(0, 10) == "masked"
    assert looker.pixel(0, 10) == [226, 227, 231]
    assert looker.hovered(6, 10) == pytest.approx(trace.weights(0, 0)[6, 10].item(), abs=ERROR)
