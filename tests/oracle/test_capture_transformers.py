"""Traces of models that transformers runs, against the weights its eager mode returns."""

import threading
import warnings

import pytest
import torch
import transformers
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from regard.attention.scores import DenseBias, DistanceBias
from regard.errors import TraceError
from regard.tracing.take import trace
from regard.tracing.traces import Trace

SMALL = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 2, "intermediate_size": 32}
GROUPED = {**SMALL, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 4}


def llama_like(config):
    return transformers.AutoModelForCausalLM.from_config(config)


MODELS = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=61, n_embd=24, n_layer=2, n_head=3, n_positions=41)
    ),
    "bert": lambda: transformers.BertModel(transformers.BertConfig(**SMALL, num_attention_heads=3)),
    "llama": lambda: llama_like(transformers.LlamaConfig(**GROUPED)),
    "mistral": lambda: llama_like(transformers.MistralConfig(**GROUPED, sliding_window=5)),
    "gemma2": lambda: llama_like(
        transformers.Gemma2Config(
            **GROUPED, sliding_window=5, query_pre_attn_scalar=4, attn_logit_softcapping=2.0
        )
    ),
    "gpt_oss": lambda: llama_like(
        transformers.GptOssConfig(**GROUPED, num_local_experts=2, num_experts_per_tok=1, sliding_window=5)
    ),
    "t5": lambda: transformers.T5ForConditionalGeneration(
        transformers.T5Config(vocab_size=61, d_model=24, d_kv=5, d_ff=31, num_layers=2, num_heads=3)
    ),
    "bart": lambda: transformers.BartForConditionalGeneration(
        transformers.BartConfig(
            vocab_size=61,
            d_model=24,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=3,
            decoder_attention_heads=3,
            encoder_ffn_dim=31,
            decoder_ffn_dim=31,
            max_position_embeddings=41,
        )
    ),
    "vit": lambda: transformers.ViTModel(
        transformers.ViTConfig(
            hidden_size=24,
            num_hidden_layers=2,
            num_attention_heads=3,
            intermediate_size=31,
            image_size=12,
            patch_size=4,
        )
    ),
}
DECODERS = ("gpt2", "llama", "mistral", "gemma2", "gpt_oss")
PAIRS = ("t5", "bart")


def model_of(name):
    """A tiny model with random weights large enough for attention that is not flat."""
    if name == "gpt_oss":
        torch.manual_seed(1)  # its router makes hard choices, which one rounding can turn around
    model = MODELS[name]().eval()
    std = 0.1 if name == "t5" else 0.3  # T5 has no scale
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=std)
    return model


def inputs_of(name, padded):
    """Arguments of the model: 2 sequences of 13 tokens, the second with 4 of padding where `padded`."""
    if name == "vit":
        return {"pixel_values": torch.randn(2, 3, 12, 12)}
    given = {
        "input_ids": torch.randint(3, 61, (2, 13)),
        "attention_mask": torch.ones(2, 13, dtype=torch.long),
    }
    if padded:
        hidden = slice(0, 4) if name in DECODERS else slice(9, 13)
        given["attention_mask"][1, hidden] = 0
    if name in PAIRS:
        given["decoder_input_ids"] = torch.randint(3, 61, (2, 7))
    return given


def eager_weights(model, given):
    """What the model itself returns, in the order its layers run: encoder, then self and cross in turn."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        out = model(**given, output_attentions=True)
    model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")
    if hasattr(out, "cross_attentions") and getattr(out, "decoder_attentions", None) is not None:
        pairs = zip(out.decoder_attentions, out.cross_attentions, strict=True)
        return [*out.encoder_attentions, *(each for pair in pairs for each in pair)]
    return list(out.attentions)


def real_rows(name, given, layer, weights):
    """The rows that are no padding: what a padded query looks at is nobody's concern."""
    rows = torch.ones(weights.shape[0], weights.shape[2], dtype=torch.bool)
    mask = given.get("attention_mask")
    if mask is not None and mask.shape[1] == weights.shape[2] and not (name in PAIRS and "decoder" in layer):
        rows = mask.bool()
    return rows


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("name", MODELS)
def test_the_trace_holds_the_weights_of_eager_mode(name, padded):
    """Every weight of every layer, head and real row equals what `output_attentions=True` returns."""
    model, given = model_of(name), inputs_of(name, padded)
    wanted = eager_weights(model, given)
    found = trace(model, given)
    assert found.n_layer == len(wanted)
    for layer, weights in zip(found.layers, wanted, strict=True):
        got = layer.block(slice(0, layer.n_query), slice(0, layer.n_key))
        rows = real_rows(name, given, layer.name, weights)
        # float32 on both sides, scores of a few units: 1e-6 for each rounding of a score.
        assert torch.allclose(got.transpose(1, 2)[rows], weights.transpose(1, 2)[rows], atol=2e-6, rtol=0), (
            layer.name
        )
    assert found.checks.passed, str(found.checks)
    assert found.checks.hidden == 0


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("gemma2", "gpt_oss")])
def test_tracing_leaves_the_models_output_as_it_was(name, padded):
    """The traced forward gives the model what its own attention would have given."""
    model, given = model_of(name), inputs_of(name, padded)
    seen = []
    handle = model.register_forward_hook(lambda module, args, out: seen.append(out[0]))
    with torch.no_grad():
        model(**given)
    trace(model, given)
    handle.remove()
    assert torch.allclose(seen[0], seen[1], atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2", "bert", "bart", "t5"])
def test_masks_that_arrive_dense_are_kept_compact(name):
    """Causality, windows, padding and T5's bias are kept as flags, rows and lines, never as query x key."""
    given = inputs_of(name, padded=True)
    found = trace(model_of(name), given)
    for layer in found.layers:
        assert layer.rule.visible.dense is None, layer.name
        assert not isinstance(layer.rule.bias, DenseBias), layer.name
    assert "kept_whole" not in found.facts


def test_the_bias_of_t5_is_a_line_of_numbers():
    """The table of biases that T5 hides in its mask is recognised as one number for each distance."""
    found = trace(model_of("t5"), inputs_of("t5", padded=False))
    kinds = {layer.name: type(layer.rule.bias) for layer in found.layers}
    assert kinds["encoder.block.1.layer.0.SelfAttention"] is DistanceBias
    assert kinds["decoder.block.1.layer.0.SelfAttention"] is DistanceBias


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_grouped_keys_are_kept_once(name):
    """Keys copied for each query head, as for a mask, are stored for each key head only."""
    found = trace(model_of(name), inputs_of(name, padded=True))
    assert {layer.k.shape[1] for layer in found.layers} == {2}
    assert {layer.n_head for layer in found.layers} == {6}


def test_a_window_of_the_model_is_a_window_of_the_rule():
    """Mistral's sliding window is read off its mask."""
    found = trace(model_of("mistral"), inputs_of("mistral", padded=False))
    assert {layer.rule.visible.window for layer in found.layers} == {5}


@pytest.mark.parametrize("name", PAIRS)
def test_layers_of_an_encoder_decoder_are_told_apart(name):
    """Cross-attention is labelled with the source, each other layer with its own side."""
    model, given = model_of(name), inputs_of(name, padded=False)
    found = trace(model, given)
    source = tuple(map(str, given["input_ids"][1].tolist()))
    target = tuple(map(str, given["decoder_input_ids"][1].tolist()))
    kinds = [layer.kind for layer in found.layers]
    assert kinds == ["self", "self", "self", "cross", "self", "cross"]
    labels = [(found.query_tokens(i, 1), found.key_tokens(i, 1)) for i in range(6)]
    assert labels == [(source, source)] * 2 + [(target, target), (target, source)] * 2


def test_a_softcap_and_sinks_are_part_of_the_layer():
    """Gemma's softcap stands in the rule; with sinks the rows of gpt-oss sum to less than 1."""
    capped = trace(model_of("gemma2"), inputs_of("gemma2", padded=False))
    assert {layer.rule.softcap for layer in capped.layers} == {2.0}
    sunk = trace(model_of("gpt_oss"), inputs_of("gpt_oss", padded=False))
    layer = sunk.layers[0]
    sums = layer.block(slice(0, 13), slice(0, 13)).sum(-1)
    taken = torch.exp(layer.sink[:, None] - layer.lse)
    assert torch.allclose(sums + taken, torch.ones(2, 6, 13), atol=1e-5)
    assert float(taken.max()) > 0.01


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss"])
def test_the_registry_and_the_model_are_restored(name):
    """After a trace, and after one that fails, model and registry are as they were."""
    model = model_of(name)
    before = (set(AttentionInterface._global_mapping), set(AttentionMaskInterface._global_mapping))
    trace(model, inputs_of(name, padded=False))
    with pytest.raises(IndexError):
        trace(model, {"input_ids": torch.tensor([[61]])})
    assert model.config._attn_implementation == "eager"
    assert before == (set(AttentionInterface._global_mapping), set(AttentionMaskInterface._global_mapping))


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_threads_trace_the_same_model_apart(name):
    """Traces taken at the same time in several threads hold their own inputs' weights only."""
    model = model_of(name)
    inputs = [{"input_ids": torch.randint(3, 61, (1, length))} for length in (5, 7, 11, 13)]
    alone = [trace(model, given).layers[1].block(slice(0, 5), slice(0, 5)) for given in inputs]
    together = [None] * len(inputs)
    started = threading.Barrier(len(inputs))

    def work(index):
        started.wait()
        for _ in range(5):
            found = trace(model, inputs[index])
            assert found.n_layer == 2
            together[index] = found.layers[1].block(slice(0, 5), slice(0, 5))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(one, other)
    assert model.config._attn_implementation == ("eager" if name == "gemma2" else "sdpa")


def test_a_model_that_keeps_its_own_attention_is_refused_with_advice():
    """A model of transformers that calls nothing of PyTorch's and ignores the registry says what to do."""
    config = transformers.BloomConfig(vocab_size=61, hidden_size=24, n_layer=2, n_head=3)
    with pytest.raises(TraceError, match=r"made no attention call that can be seen.*from_weights"):
        trace(transformers.BloomModel(config).eval(), {"input_ids": torch.ones(1, 5, dtype=torch.long)})


def test_weights_that_a_model_returns_itself_become_a_trace():
    """What `output_attentions=True` gives goes into from_weights as it is."""
    config = transformers.BloomConfig(vocab_size=61, hidden_size=24, n_layer=2, n_head=3)
    with torch.no_grad():
        out = transformers.BloomModel(config).eval()(
            torch.ones(1, 5, dtype=torch.long), output_attentions=True
        )
    found = Trace.from_weights(out.attentions, rows="abcde")
    assert found.n_layer == 2
    assert torch.equal(found.weights(1, 2), out.attentions[1][0, 2])
    assert found.key_tokens(0) == tuple("abcde")


def test_three_lines_are_enough():
    """A model of transformers, its inputs, one call: the weights of any layer and head."""
    model = model_of("llama")
    inputs = {"input_ids": torch.tensor([[5, 7, 11, 13, 17]])}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        weights = trace(model, inputs).weights(1, 4)
    assert weights.shape == (5, 5)
    assert torch.allclose(weights.sum(-1), torch.ones(5))
