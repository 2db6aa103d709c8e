"""Measures: each equals its dense oracle, made-up heads get exactly their scores, and memory stays O(N)."""

import math
from dataclasses import replace

import pytest
import torch
from heads.dense_heads import dense_measures

from regard.attention import feature_map
from regard.attention.scores import DenseBias, DistanceBias, ScoreRule, SlopeBias
from regard.attention.softmax import attend, weights
from regard.attention.visibility import Visibility
from regard.heads.measures import ROW_MEASURES, copies, is_punctuation, measure, token_facts
from regard.registry import MEASURES
from regard.tracing import layers
from regard.tracing.layers import LayerTrace, LinearLayerTrace
from regard.tracing.traces import Trace

N = 23
WORDS = "[CLS] the cat , the dog . a cat saw the dog ; the dog ran . the cat , it [SEP] x".split()
IDS = torch.tensor([{word: index for index, word in enumerate(dict.fromkeys(WORDS))}[word] for word in WORDS])
SEGMENT = torch.tensor([[0] * 11 + [1] * 12])

RULES = {
    "causal": ScoreRule(visible=Visibility(causal=True)),
    "everything": ScoreRule(),
    "scaled": ScoreRule(scale=0.9, visible=Visibility(causal=True)),
    "window": ScoreRule(visible=Visibility(causal=True, window=7)),
    "two-sided window": ScoreRule(visible=Visibility(window=5)),
    "padding": ScoreRule(visible=Visibility(key_mask=torch.arange(N)[None] < 19)),
    "segments": ScoreRule(visible=Visibility(query_segment=SEGMENT, key_segment=SEGMENT)),
    "distance bias": ScoreRule(bias=DistanceBias(torch.randn(6, 2 * N), N)),
    "slopes": ScoreRule(bias=SlopeBias(torch.rand(6)), visible=Visibility(causal=True)),
    "dense bias": ScoreRule(bias=DenseBias(torch.randn(1, 6, N, N))),
    "softcap": ScoreRule(softcap=2.0, visible=Visibility(causal=True)),
    "additive": ScoreRule(additive=torch.randn(5)),
}


def traced(rule, n_kv_head=3, n_head=6, scale=2.0, dtype=torch.float32):
    """A trace of one layer on WORDS, and its whole weights."""
    q = (scale * torch.randn(1, n_head, N, 5)).to(dtype)
    k, v = (torch.randn(2, 1, n_kv_head, N, 5)).to(dtype)
    lse = attend(q, k, v, rule).lse
    layer = LayerTrace("layer", q, k, lse, rule)
    return Trace((layer,), (tuple(WORDS),), ids=IDS[None]), weights(q.double(), k.double(), rule)[0]


def compare(measured, whole, visible, rtol=2e-5, **facts):
    """Every measure of every head against the oracle; those it does not have must be NaN."""
    for head in range(whole.shape[0]):
        expected = dense_measures(whole[head], visible, **facts)
        for name in ROW_MEASURES:
            value = float(measured[name][0, head])
            if name in expected:
                assert value == pytest.approx(expected[name], rel=rtol, abs=2e-6), (name, head)
            else:
                assert math.isnan(value), name


def facts_of(key_mask=None):
    facts = token_facts(WORDS, IDS, key_mask=key_mask)
    return {
        "tokens_special": facts.special.tolist(),
        "punctuation": facts.punctuation.tolist(),
        "rare": facts.rare.tolist(),
        "ids": IDS.tolist(),
    }


@pytest.mark.parametrize("block", [1 << 19, 700, 1], ids=["one block", "some rows", "single rows"])
@pytest.mark.parametrize("name", RULES)
def test_every_measure_equals_its_dense_oracle(name, block, monkeypatch):
    """Whatever the rule and however the rows are cut, the streamed numbers are those of the whole matrix."""
    monkeypatch.setattr(layers, "BLOCK", block)
    monkeypatch.setattr(layers, "MOST_ROWS", 5 if block < 1000 else 128)
    rule = RULES[name]
    trace, whole = traced(rule)
    visible = rule.visible.tile(slice(0, N), slice(0, N))[0, 0]
    compare(measure(trace), whole, visible, **facts_of())


@pytest.mark.parametrize("n_kv_head", [6, 3, 1], ids=["multi-head", "grouped", "multi-query"])
def test_groups_of_heads_keep_their_keys(n_kv_head):
    """Each query head is measured with the key head it really used."""
    trace, whole = traced(RULES["causal"], n_kv_head)
    compare(measure(trace), whole, RULES["causal"].visible.tile(slice(0, N), slice(0, N))[0, 0], **facts_of())


def test_half_precision_queries_are_measured_in_float32():
    """A trace kept in bfloat16 gives measures of its weights, not of rounded sums."""
    trace, _ = traced(RULES["causal"], dtype=torch.bfloat16)
    layer = trace.layers[0]
    whole = layer.block(None, slice(0, N), slice(0, N))[0]
    measured = measure(trace)
    expected = dense_measures(whole[2], torch.ones(N, N).tril().bool(), **facts_of())
    assert float(measured["entropy"][0, 2]) == pytest.approx(expected["entropy"], rel=1e-4)


def test_linear_attention_is_measured_too():
    """A layer that never forms its weights has the measures of the weights it stands for."""
    q, k, v = torch.randn(3, 1, 2, N, 5)
    layer = LinearLayerTrace.of("layer", q, k, v, feature_map("elu1"), causal=True)
    trace = Trace((layer,), (tuple(WORDS),), ids=IDS[None])
    whole = layer.block(None, slice(0, N), slice(0, N))[0]
    compare(measure(trace), whole, torch.ones(N, N).tril().bool(), **facts_of())


def test_chance_is_the_score_of_a_head_that_looks_everywhere_alike():
    """The chance level equals the measures of weights 1/n, and the argmax falls on each with 1/n."""
    visible = torch.ones(N, N).tril().bool()
    uniform = visible.double() / visible.sum(-1, keepdim=True)
    trace, _ = traced(RULES["causal"])
    measured = measure(trace)
    expected = dense_measures(uniform, visible, **facts_of())
    for name, value in expected.items():
        if not name.startswith(("argmax", "retrieval")):
            assert float(measured.chance[name][0]) == pytest.approx(value, rel=1e-5), name
    # The largest of equal weights falls on what is to be retrieved as often as weight does.
    assert float(measured.chance["retrieval"][0]) == pytest.approx(expected["induction"], rel=1e-5)
    assert float(measured.chance["argmax-2"][0]) == pytest.approx(
        sum(1 / (i + 1) for i in range(2, N)) / (N - 2), rel=1e-5
    )
    assert math.isnan(float(measured.chance["next"][0]))


def test_in_a_text_of_one_word_all_earlier_tokens_are_copies():
    """What is not on copies is on oneself, in every layer."""
    n_token = 61
    q, k = torch.randn(2, 1, 2, n_token, 5)
    rule = RULES["causal"]
    layers = tuple(LayerTrace(f"{i}", q, k, attend(q, k, k, rule).lse, rule) for i in range(2))
    measured = measure(Trace(layers, ids=torch.full((1, n_token), 7)))
    torch.testing.assert_close(
        measured["duplicate"], 1 - _mean_without_first(layers[0]), rtol=1e-5, atol=1e-6
    )


def _mean_without_first(layer):
    """The mean weight on oneself of all rows but the first, twice: once for each layer."""
    own = layer.block(None, slice(0, layer.n_query), slice(0, layer.n_key))[0].double()
    return own.diagonal(dim1=-2, dim2=-1)[:, 1:].mean(-1).expand(2, -1)


def test_padding_neither_looks_nor_is_looked_at():
    """The measures of a padded text are those of the text alone."""
    rule = RULES["padding"]
    trace, _ = traced(rule)
    key_mask = torch.arange(N) < 19
    padded = measure(Trace(trace.layers, trace.tokens, ids=IDS[None], key_mask=key_mask[None]))
    layer = trace.layers[0]
    short = LayerTrace("layer", layer.q[:, :, :19], layer.k[:, :, :19], layer.lse[:, :, :19], ScoreRule())
    alone = measure(Trace((short,), (tuple(WORDS[:19]),), ids=IDS[None, :19]))
    for name in ROW_MEASURES:
        torch.testing.assert_close(padded[name], alone[name], rtol=1e-5, atol=1e-6, equal_nan=True)


def test_padding_on_the_left_moves_the_first_position():
    """A text after padding has the measures of the text alone, the weight on its first token too."""
    rule = ScoreRule(visible=Visibility(causal=True, key_mask=torch.arange(N)[None] >= 4))
    trace, _ = traced(rule)
    key_mask = torch.arange(N) >= 4
    padded = measure(Trace(trace.layers, trace.tokens, ids=IDS[None], key_mask=key_mask[None]))
    layer = trace.layers[0]
    causal = ScoreRule(visible=Visibility(causal=True))
    short = LayerTrace("layer", layer.q[:, :, 4:], layer.k[:, :, 4:], layer.lse[:, :, 4:], causal)
    alone = measure(Trace((short,), (tuple(WORDS[4:]),), ids=IDS[None, 4:]))
    assert not alone["first"].isnan().any()
    for name in ROW_MEASURES:
        torch.testing.assert_close(padded[name], alone[name], rtol=1e-5, atol=1e-6, equal_nan=True)


def test_sequences_of_a_batch_count_by_their_rows():
    """Measures of a batch are those of all rows together; one sequence can be chosen."""
    q, k, v = torch.randn(3, 2, 3, 11, 5)
    rule = RULES["causal"]
    layer = LayerTrace("layer", q, k, attend(q, k, v, rule).lse, rule)
    ids = torch.randint(0, 7, (2, 11))
    trace = Trace((layer,), (tuple("abcdefghijk"),) * 2, ids=ids)
    both, first, second = measure(trace), measure(trace, batch=0), measure(trace, batch=1)
    torch.testing.assert_close(both["entropy"], (first["entropy"] + second["entropy"]) / 2)
    n_first, n_second = first.n_query["duplicate"], second.n_query["duplicate"]
    mixed = (first["duplicate"] * n_first + second["duplicate"] * n_second) / (n_first + n_second)
    torch.testing.assert_close(both["duplicate"], mixed)


def test_cross_attention_has_no_positions():
    """Where queries and keys are of different texts, only what keys are can be measured."""
    trace = Trace.from_weights(torch.rand(3, 5, 7).softmax(-1), rows=list("abcde"), cols=list("tuvwxyz"))
    measured = measure(trace)
    for name in ("previous", "same", "next", "distance", "duplicate", "induction", "positional"):
        assert measured[name].isnan().all(), name
    assert not measured["entropy"].isnan().any()


def shifted(n, offset):
    """Everyone looks at position + offset, who cannot at themselves."""
    table = torch.zeros(n, n)
    for i in range(n):
        table[i, i + offset if 0 <= i + offset < n else i] = 1.0
    return table


def test_direction_is_pinned():
    """A head that looks one back scores 1 on previous and 0 on next, and the other way round."""
    measured = measure(Trace.from_weights(torch.stack([shifted(13, offset) for offset in (-1, 0, 1)])))
    assert measured["previous"].tolist() == [[1.0, 0.0, 0.0]]
    assert measured["next"].tolist() == [[0.0, 0.0, 1.0]]
    itself = 1 / 13  # the one row that has nowhere else to look
    assert measured["same"][0].tolist() == pytest.approx([itself, 1.0, itself])
    assert measured["positional"].tolist() == [[1.0, 1.0, 1.0]]
    assert measured.offset.tolist() == [[-1, 0, 1]]


def test_a_perfect_induction_head_scores_one():
    """Looking at what followed the last copy scores 1 on induction and 0 on duplicate, and the reverse."""
    ids = torch.tensor([3, 5, 7, 11, 13] * 2)
    induction, duplicate = torch.eye(10), torch.eye(10)
    for i in range(5, 10):
        induction[i], duplicate[i] = 0.0, 0.0
        induction[i, i - 4] = duplicate[i, i - 5] = 1.0
    layers = Trace.from_weights(torch.stack([induction, duplicate])).layers
    measured = measure(Trace(layers, ids=ids[None]))
    assert measured["induction"].tolist() == [[1.0, 0.0]]
    assert measured["duplicate"].tolist() == [[0.0, 1.0]]


def test_a_uniform_head_is_at_chance_everywhere():
    """Its scores are the chance levels, its uniformity is 1, and no offset is its argmax."""
    visible = torch.ones(17, 17).tril()
    measured = measure(Trace.from_weights(visible / visible.sum(-1, keepdim=True)))
    assert float(measured["uniformity"]) == pytest.approx(1.0)
    assert float(measured["previous"]) == pytest.approx(float(measured.chance["previous"]))
    assert float(measured["positional"]) == 0.0


def test_copies_are_listed_once_and_special_tokens_have_none():
    """The list holds all earlier copies, none of special tokens, and what followed is before the query."""
    facts = token_facts(["[CLS]", "a", "a", "b", "a", "[CLS]"], torch.tensor([0, 1, 1, 2, 1, 0]))
    rows, keys = copies(facts, 0).pairs(slice(0, 6))
    assert list(zip(rows.tolist(), keys.tolist(), strict=True)) == [(2, 1), (4, 1), (4, 2)]
    rows, keys = copies(facts, 1).pairs(slice(0, 6))
    assert list(zip(rows.tolist(), keys.tolist(), strict=True)) == [(4, 2), (4, 3)]


def test_measures_print_as_one_short_table():
    """A line for each measure with its mean, chance and strongest head, however many heads there are."""
    trace, _ = traced(RULES["causal"])
    layers = tuple(replace(trace.layers[0], name=f"layer {index}") for index in range(30))
    measures = measure(Trace(layers, trace.tokens, ids=trace.ids))
    lines = repr(measures).splitlines()
    assert lines[0] == "Measures of 180 heads in 30 layers"
    assert [line.split()[0] for line in lines[2:]] == list(MEASURES)
    assert max(map(len, lines)) <= 79
    previous = next(line for line in lines if line.startswith("previous"))
    assert f"{measures['previous'].max():.2f}" in previous
    assert f"{measures.chance['previous'][0]:.3f}" in previous


@pytest.mark.parametrize(
    ("token", "is_one"),
    [
        (".", True),
        (" ,", True),
        ("##.", True),
        ("«", True),
        ("$", True),
        ("a", False),
        ("", False),
        (" ", False),
    ],
)
def test_punctuation_is_told_by_its_characters(token, is_one):
    """Signs and symbols, in any script and with any mark of a tokenizer."""
    assert is_punctuation(token) is is_one


def test_rare_words_are_those_a_corpus_has_least_of():
    """With counts, the tenth of the words that is seen least; words only, and at least one."""
    counts = torch.tensor([9, 9, 1, 9, 0])
    facts = token_facts(["a", "b", "c", ".", "<s>"], torch.tensor([0, 1, 2, 3, 4]), counts=counts)
    assert facts.rare.tolist() == [False, False, True, False, False]


def test_the_first_position_is_never_rare():
    """A word that stands first and nowhere else is not rare: heads look there for another reason."""
    tokens = ["The", *["the", "cat", "sat"] * 5]
    assert not token_facts(tokens).rare[0]
    padded = token_facts(["[PAD]", *tokens], key_mask=torch.arange(17) > 0)
    assert not padded.rare[:2].any()
    assert padded.rare.sum() == 2  # a tenth of fifteen words


def test_every_measure_is_explained():
    """Each has a line for people, apart from the nine offsets that make up the positional one."""
    assert {name for name in ROW_MEASURES if not name.startswith("argmax")} | {"positional"} == set(MEASURES)


def test_no_buffer_of_query_times_key_is_made(monkeypatch):
    """At 2048 tokens no tensor is made that is larger than a block of rows, however long the text."""
    from torch.utils._python_dispatch import TorchDispatchMode

    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for each in out if isinstance(out, (tuple, list)) else [out]:
                if isinstance(each, torch.Tensor):
                    largest = max(largest, each.numel())
            return out

    monkeypatch.setattr(layers, "BLOCK", 1 << 19)
    n_token, rule = 2048, RULES["causal"]
    q, k = torch.randn(1, 2, n_token, 3), torch.randn(1, 1, n_token, 3)
    layer = LayerTrace("layer", q, k, attend(q, k, k, rule).lse, rule)
    trace = Trace((layer,), ids=torch.randint(0, 50_000, (1, n_token)))
    with Watch():
        measure(trace)
    assert largest <= layers.BLOCK < n_token * n_token
