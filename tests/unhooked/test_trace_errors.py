"""Messages of traces, as a user meets them, and files that nothing but our own checks guard."""

import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.attention import feature_map
from regard.attention.scores import DistanceBias, ScoreRule
from regard.attention.softmax import attend
from regard.attention.visibility import Visibility
from regard.errors import ArgumentError, ShapeError, TraceError
from regard.files.loading import load
from regard.tracing.generation import GrowingTrace, trace_generation
from regard.tracing.gradients import score_gradients
from regard.tracing.layers import DenseLayerTrace, LayerTrace, LinearLayerTrace
from regard.tracing.recorder import Recorder
from regard.tracing.take import trace
from regard.tracing.traces import Trace


@pytest.fixture(scope="module")
def bert():
    return load("bert", random=True)


@pytest.fixture(scope="module")
def gpt2():
    return load("gpt2", random=True)


def layer(**changed):
    parts = {
        "name": "a",
        "q": torch.zeros(2, 6, 5, 3),
        "k": torch.zeros(2, 2, 7, 3),
        "lse": torch.zeros(2, 6, 5),
        "rule": ScoreRule(),
    }
    return LayerTrace(**{**parts, **changed})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"lse": torch.zeros(2, 6, 7)}, r"one number for each query, \(2, 6, 5\).*Got shape \(2, 6, 7\)"),
        ({"k": torch.zeros(2, 4, 7, 3)}, "query heads must be a multiple of key heads"),
        ({"q": torch.zeros(2, 6, 5, 4)}, "qk_dim 4 and k has 3"),
        ({"v": torch.zeros(2, 2, 5, 3)}, "k and v differ"),
        ({"rule": ScoreRule(sink=torch.zeros(5))}, r"sink must be \(head,\) = \(6,\)"),
        (
            {"rule": ScoreRule(visible=Visibility(key_mask=torch.ones(2, 5).bool()))},
            "key_mask has key 5, attention has 7",
        ),
        ({"rule": ScoreRule(bias=DistanceBias(torch.zeros(6, 3), 1))}, "covers distances"),
    ],
)
def test_a_layer_of_parts_that_do_not_fit_is_refused(changed, message):
    """The message names the part, the rule and the shapes."""
    with pytest.raises(ShapeError, match=message):
        layer(**changed)


def test_a_linear_layer_of_parts_that_do_not_fit_is_refused():
    """The normaliser, the padding and the feature map are checked as well."""
    q, k = torch.zeros(1, 2, 5, 3), torch.zeros(1, 2, 7, 3)
    with pytest.raises(ShapeError, match="one number for each query"):
        LinearLayerTrace("a", q, k, torch.zeros(1, 2, 7), feature_map("elu1"))
    with pytest.raises(ShapeError, match=r"key_mask must be \(batch, key\) = \(1, 7\)"):
        LinearLayerTrace(
            "a", q, k, torch.zeros(1, 2, 5), feature_map("elu1"), key_mask=torch.ones(1, 5).bool()
        )
    with pytest.raises(ShapeError, match="drawn for qk_dim 4"):
        LinearLayerTrace("a", q, k, torch.zeros(1, 2, 5), feature_map("favor", qk_dim=4))
    with pytest.raises(ShapeError, match="at most as many"):
        LinearLayerTrace("a", k, q, torch.zeros(1, 2, 7), feature_map("elu1"), causal=True)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (torch.zeros(2, 1, 1, 1, 1, 1), "weights must be"),
        (torch.zeros(0, 3), "at least one number"),
        (torch.tensor(0.5), "weights must be"),
        (torch.ones(2, 3).bool(), "real numbers"),
        ("words", "NumPy or torch"),
    ],
    ids=["6-D", "none", "0-D", "boolean", "text"],
)
def test_weights_of_no_shape_we_know_are_refused(weights, message):
    """from_weights says which shapes there are."""
    with pytest.raises((ShapeError, ArgumentError), match=message):
        Trace.from_weights(weights)


def test_a_dense_layer_has_four_dimensions():
    """(batch, head, query, key) and nothing else."""
    with pytest.raises(ShapeError, match=r"must be \(batch, head, query, key\). Got shape \(3, 5\)"):
        DenseLayerTrace("a", torch.zeros(3, 5))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "the input is empty"),
        ([], "the input is empty"),
        (torch.zeros(1, 3), "ids must be whole numbers"),
        (torch.zeros(1, 0, dtype=torch.long), "at least one"),
        (torch.zeros(1, 1, 3, dtype=torch.long), r"\(position\) or \(batch, position\)"),
        ({"input_ids": torch.ones(1, 3).long()}, "takes a text, several, or ids"),
        (torch.tensor([[99_999]]), "tokens must lie between 0 and 50256"),
    ],
    ids=["empty text", "no texts", "floats", "no ids", "3-D", "mapping", "unknown token"],
)
def test_input_that_is_no_text_is_refused(gpt2, given, message):
    """What a model of ours takes is said."""
    with pytest.raises(ArgumentError, match=message):
        trace(gpt2, given)


def test_text_needs_a_tokenizer(gpt2):
    """A model alone knows no words; a foreign one is told what to give."""
    with pytest.raises(ArgumentError, match="a text needs a tokenizer"):
        trace(gpt2.model, "words")
    with pytest.raises(ArgumentError, match="a text needs a tokenizer: give token ids, or a `tokenizer`"):
        trace(torch.nn.Linear(3, 3), "words")
    with pytest.raises(ArgumentError, match=r"Loaded model or a torch\.nn\.Module. Got str"):
        trace("gpt2", "words")


def test_targets_belong_to_encoder_decoders(gpt2):
    """One without is asked for it, one too many is refused."""
    with pytest.raises(ArgumentError, match="only an encoder-decoder has a target"):
        trace(gpt2, "words", target="more")
    with pytest.raises(ArgumentError, match="give `target`"):
        trace(load("t5", random=True), "words")


def test_storage_is_checked(gpt2):
    """A dtype that cannot hold queries."""
    with pytest.raises(ArgumentError, match=r"dtype is how queries and keys are kept.*Got torch\.int8"):
        trace(gpt2, "words", dtype=torch.int8)


def test_unknown_layers_of_a_foreign_model_are_named(gpt2):
    """The message lists what there is."""
    encoder = torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True).eval()
    with pytest.raises(ArgumentError, match=r"some of 0 to 0 or self_attn\. Got \['x', 0, 1\]"):
        trace(encoder, torch.randn(1, 3, 8), layers=["x", 0, 1])


def test_generation_is_traced_one_text_at_a_time(gpt2, bert):
    """Several prompts, beams and full contexts are refused with the reason."""
    with pytest.raises(ArgumentError, match=r"one text is written at a time\. Got 2 prompts"):
        trace_generation(gpt2, ["one", "two"])
    with pytest.raises(ArgumentError, match="beam search changes"):
        trace_generation(gpt2, "one", n_beam=2)
    with pytest.raises(ArgumentError, match="the model's limit is 1024: nothing can follow"):
        trace_generation(gpt2, torch.zeros(1, 1024, dtype=torch.long))
    with pytest.raises(TraceError, match="nothing was recorded"):
        GrowingTrace().trace(torch.zeros(1, 1, dtype=torch.long))
    with pytest.raises(ArgumentError, match="no layer 'x' was seen"):
        GrowingTrace().layer("x")


def test_a_prediction_must_be_one_number(bert):
    """And depend on what was traced."""
    with pytest.raises(ArgumentError, match="must give one number"):
        score_gradients(bert, "words", objective=lambda output: output.hidden)
    with pytest.raises(TraceError, match="does not depend on any attention layer"):
        score_gradients(bert, "words", objective=lambda output: torch.zeros(()))
    with pytest.raises(ArgumentError, match="there is no token 99999"):
        score_gradients(load("gpt2", random=True), "words", token=99_999)


def test_a_recorder_takes_no_unknown_storage():
    """Said when it is made, not when it is used."""
    with pytest.raises(ArgumentError, match="one of"):
        Recorder(dtype=torch.int64)


def one_of_each():
    """A trace with the kinds of layers whose files have most parts."""
    q, k, v = torch.randn(2, 6, 5, 3), torch.randn(2, 3, 7, 3), torch.randn(2, 3, 7, 3)
    keys = torch.ones(2, 7).bool()
    bias = DistanceBias(torch.randn(6, 11), 4)
    rule = ScoreRule(visible=Visibility(causal=True, start=0, key_mask=keys), bias=bias)
    return Trace(
        (
            LayerTrace("softmax", q, k, attend(q, k, v, rule).lse, rule, v),
            LinearLayerTrace.of("favor", q, k, v, feature_map("favor", qk_dim=3, n_feature=5), key_mask=keys),
            DenseLayerTrace("dense", torch.rand(2, 6, 5, 7), "cross"),
        ),
        tokens=(tuple("abcde"),) * 2,
        ids=torch.zeros(2, 5, dtype=torch.long),
    )


@given(data=st.data())
def test_a_damaged_file_gives_our_error_or_a_trace(tmp_path_factory, data):
    """Whatever is written over the header, no other error reaches the reader."""
    path = tmp_path_factory.mktemp("damaged") / "a.trace"
    one_of_each().save(path)
    raw = bytearray(path.read_bytes())
    header = struct.unpack("<Q", raw[:8])[0]
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(8, 8 + header - 1))
        raw[at] = data.draw(st.sampled_from(b'0123456789"[]{}:,.-etfnaullq layers'))
    path.write_bytes(bytes(raw))
    try:
        found = Trace.load(path)
    except TraceError:
        return
    for each in found.layers:
        assert each.tile(0, slice(0, 2), slice(0, 2)).dim() == 2
