"""Traces of models that transformers runs, against the weights its eager mode returns."""

import threading
import warnings

import pytest
import torch
import transformers
from sweep import judge
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

import regard
from regard.attention.scores import DenseBias, DistanceBias
from regard.errors import ArgumentError
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
        got = layer.block(None, slice(0, layer.n_query), slice(0, layer.n_key))
        rows = real_rows(name, given, layer.name, weights)
        # float32 on both sides, scores of a few units: 1e-6 for each rounding of a score.
        assert torch.allclose(got.transpose(1, 2)[rows], weights.transpose(1, 2)[rows], atol=2e-6, rtol=0), (
            layer.name
        )
    assert found.checks.passed, str(found.checks)


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("mode", ["default", "eager"])
@pytest.mark.parametrize("name", MODELS)
def test_tracing_leaves_the_models_output_as_it_was(name, padded, mode):
    """The model runs its own code on its own masks: the traced output is the untraced one, to the bit."""
    model, given = model_of(name), inputs_of(name, padded)
    if mode == "eager":
        model.set_attn_implementation("eager")
    seen = []
    handle = model.register_forward_hook(lambda module, args, out: seen.append(out[0]))
    with torch.no_grad():
        model(**given)
    trace(model, given)
    handle.remove()
    assert torch.equal(seen[0], seen[1])


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
    sums = layer.block(None, slice(0, 13), slice(0, 13)).sum(-1)
    taken = torch.exp(layer.rule.sink[:, None] - layer.lse).float()
    assert torch.allclose(sums + taken, torch.ones(2, 6, 13), atol=1e-5)
    assert float(taken.max()) > 0.01


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_the_registry_and_the_model_are_restored(name):
    """After a trace, and after one that fails, model and registry are as they were."""
    model = model_of(name)
    before, mode = AttentionInterface.get_interface, model.config._attn_implementation
    trace(model, inputs_of(name, padded=False))
    with pytest.raises(IndexError):
        trace(model, {"input_ids": torch.tensor([[61]])})
    assert model.config._attn_implementation == mode
    assert AttentionInterface.get_interface is before


def mode_of(model, name):
    model.set_attn_implementation(name)
    return model


@pytest.mark.parametrize("mode", ["default", "eager"])
@pytest.mark.parametrize(
    "model_type",
    ["splinter", "nllb-moe", "pegasus_x", "bigbird_pegasus", "deepseek_v4", "hy_v4", "deepseek_v32",
     "glm_moe_dsa", "axk2", "mistral_large4"],
)  # fmt: skip
def test_models_whose_attention_a_trace_once_changed(model_type, mode):
    """Each of these was traced with another attention than its own, and the check passed."""
    for name, run in judge(model_type).items():
        if name.startswith(mode):
            assert run.outcome == "equal", f"{name}: {run.outcome}, {run.why}"
            assert run.n_layer > 0


def halved(module, query, key, value, attention_mask, scaling=None, **_):
    """Attention with a softmax of its own: of half the scores."""
    key, value = (part.repeat_interleave(query.shape[1] // part.shape[1], 1) for part in (key, value))
    scores = query @ key.mT * scaling / 2
    if attention_mask is not None:
        scores = scores.masked_fill(~attention_mask, -torch.inf)
    else:
        scores = scores + torch.full(scores.shape[-2:], -torch.inf).triu(1)
    weights = scores.softmax(-1)
    halved.weights.append(weights)
    return (weights @ value).transpose(1, 2).contiguous(), None


def mystery(module, query, key, value, attention_mask, **_):
    """Something that is no softmax over products at all."""
    return value.repeat_interleave(query.shape[1] // value.shape[1], 1).cumsum(2).transpose(
        1, 2
    ).contiguous(), None


@pytest.fixture
def registered(request):
    AttentionInterface.register("mine", request.param)
    AttentionMaskInterface.register("mine", AttentionMaskInterface._global_mapping["sdpa"])
    yield request.param
    AttentionInterface._global_mapping.pop("mine")
    AttentionMaskInterface._global_mapping.pop("mine")


@pytest.mark.parametrize("registered", [halved], indirect=True)
def test_a_function_that_a_user_registered_is_observed(registered):
    """It runs, not plain softmax in its place, and its weights are the trace's."""
    model, given = mode_of(model_of("llama"), "mine"), inputs_of("llama", padded=False)
    halved.weights = []
    found = trace(model, given)
    for layer, weights in zip(found.layers, halved.weights, strict=True):
        assert torch.allclose(layer.block(None, slice(0, 13), slice(0, 13)), weights, atol=2e-6)
    assert found.checks.passed


@pytest.mark.parametrize("registered", [mystery], indirect=True)
def test_a_function_that_cannot_be_explained_is_marked_unverified(registered):
    """Softmax over its arguments does not give its output: trace, repr and the facts on its page say so."""
    model = mode_of(model_of("llama"), "mine")
    with pytest.warns(UserWarning, match="does not agree"):
        found = trace(model, inputs_of("llama", padded=False))
    assert found.unverified == found.names
    assert "UNVERIFIED" in repr(found)
    assert "model.layers.0.self_attn" in found.facts["unverified"]


def test_a_model_that_builds_its_mask_itself_needs_none():
    """MPT without a mask, which ended in an AttributeError."""
    config = transformers.MptConfig(vocab_size=61, d_model=24, n_layers=2, n_heads=3)
    found = trace(transformers.MptModel(config).eval(), {"input_ids": torch.randint(3, 61, (2, 13))})
    assert found.n_layer == 2
    assert found.checks.passed


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_threads_trace_the_same_model_apart(name):
    """Traces taken at the same time in several threads hold their own inputs' weights only."""
    model = model_of(name)
    inputs = [{"input_ids": torch.randint(3, 61, (1, length))} for length in (5, 7, 11, 13)]
    alone = [trace(model, given).layers[1].block(None, slice(0, 5), slice(0, 5)) for given in inputs]
    together = [None] * len(inputs)
    started = threading.Barrier(len(inputs))

    def work(index):
        started.wait()
        for _ in range(5):
            found = trace(model, inputs[index])
            assert found.n_layer == 2
            together[index] = found.layers[1].block(None, slice(0, 5), slice(0, 5))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(one, other)
    assert model.config._attn_implementation == ("eager" if name == "gemma2" else "sdpa")


def test_a_model_that_keeps_its_own_attention_is_traced_too():
    """BLOOM calls nothing of PyTorch's and ignores the registry: its softmax is followed, with q and k."""
    torch.manual_seed(0)
    config = transformers.BloomConfig(vocab_size=61, hidden_size=24, n_layer=2, n_head=3)
    model, ids = transformers.BloomModel(config).eval(), torch.randint(3, 61, (2, 13))
    found = trace(model, {"input_ids": ids})
    with torch.no_grad():
        wanted = model(ids, output_attentions=True).attentions
    for layer, weights in zip(found.layers, wanted, strict=True):
        assert torch.allclose(layer.block(None, slice(0, 13), slice(0, 13)), weights, atol=2e-6)
        assert layer.rule.visible.causal
        assert layer.rule.bias.values.shape == (1, 3, 1, 13)  # its ALiBi depends on the key alone


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


@pytest.mark.parametrize("mode", ["default", "eager"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "gemma2", "bart", "t5"])
def test_generation_with_a_cache_is_one_growing_trace(name, mode):
    """`model.generate()`, prompts padded on the left: each step's weights, as eager generate returns them."""
    model = model_of(name)
    prompts = torch.randint(3, 61, (2, 6))
    given = {"input_ids": prompts, "attention_mask": torch.ones(2, 6, dtype=torch.long)}
    given["attention_mask"][1, :2] = 0
    choice = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    if name == "t5":
        choice["decoder_start_token_id"] = 0
    if mode == "eager":
        model.set_attn_implementation("eager")
    plain = model.generate(**given, **choice)
    with regard.watch(model) as seen:
        written = model.generate(**given, **choice)
    assert torch.equal(plain, written)
    found = seen.trace
    assert found.checks.passed, str(found.checks)
    assert torch.equal(found.ids, written[:, :-1])  # the last token was written, and never read
    model.set_attn_implementation("eager")
    out = model.generate(**given, **choice, output_attentions=True, return_dict_in_generate=True)
    steps = out.decoder_attentions if name in PAIRS else out.attentions
    layers = [
        layer for layer in found.layers if layer.kind == "self" and not layer.name.startswith("encoder")
    ]
    layers = [layer for layer in layers if ".encoder." not in f".{layer.name}"]
    assert len(layers) == len(steps[0])
    for index, layer in enumerate(layers):
        row = 0
        for step in steps:
            weights = step[index]
            rows = slice(row, row + weights.shape[2])
            got = layer.block(None, rows, slice(rows.stop - weights.shape[3], rows.stop))
            real = torch.ones(2, weights.shape[2], dtype=torch.bool)
            if name not in PAIRS and row == 0:
                real = given["attention_mask"].bool()
            assert torch.allclose(got.transpose(1, 2)[real], weights.transpose(1, 2)[real], atol=5e-6), (
                layer.name
            )
            row = rows.stop


def test_rows_of_a_decoder_that_makes_up_its_input_are_labelled_with_it():
    """BART given no `decoder_input_ids` shifts its input: rows stand for the shifted tokens."""
    base = model_of("bart").model.eval()
    ids = torch.randint(3, 61, (1, 7))
    found = trace(base, {"input_ids": ids})
    shifted = [base.config.decoder_start_token_id, *ids[0, :-1].tolist()]
    assert found.ids.tolist() == [shifted]
    assert found.source_tokens[0] == tuple(map(str, ids[0].tolist()))
    cross = next(index for index, layer in enumerate(found.layers) if layer.kind == "cross")
    assert found.query_tokens(cross) == tuple(map(str, shifted))


def test_a_target_is_read_after_the_start_token():
    """`target` as a list of ids is an answer, which T5 reads after its start; a tensor is taken as it is."""
    model = model_of("t5")
    model.config.decoder_start_token_id = 0
    ids = torch.randint(3, 61, (1, 7))
    assert trace(model, {"input_ids": ids}, target=[5, 7]).ids.tolist() == [[0, 5, 7]]
    assert trace(model, {"input_ids": ids}, target=torch.tensor([[5, 7]])).ids.tolist() == [[5, 7]]


@pytest.mark.parametrize("how", [lambda ids: {"input_ids": ids}, lambda ids: ids], ids=["mapping", "array"])
def test_ids_may_be_numpy(how):
    """What a tokenizer returns with `return_tensors="np"` is ids like any other."""
    model, ids = model_of("llama"), torch.randint(3, 61, (2, 5))
    found, wanted = trace(model, how(ids.numpy())), trace(model, ids)
    assert torch.equal(found.layers[1].q, wanted.layers[1].q)
    assert torch.equal(found.ids, ids)


def test_layers_are_counted_from_the_end():
    """`layers=[-1]` is the last, whose number nobody knows before the model ran."""
    model, given = model_of("llama"), inputs_of("llama", padded=False)
    assert trace(model, given, layers=[-1]).names == ("model.layers.1.self_attn",)
    with pytest.raises(ArgumentError, match=r"layers must be some of 0 to 1 .* Got \[-3\]"):
        trace(model, given, layers=[-3])


def test_a_step_with_a_cache_is_self_attention():
    """One token over the keys of all before it."""
    model, ids = model_of("llama"), torch.randint(3, 61, (1, 6))
    with torch.no_grad():
        past = model(ids[:, :5], use_cache=True).past_key_values
    found = trace(model, {"input_ids": ids[:, 5:], "past_key_values": past})
    assert [layer.kind for layer in found.layers] == ["self", "self"]
    assert found.layers[0].shape == (1, 6, 1, 6)


@pytest.mark.parametrize("how", ["compile()", "forward"])
def test_a_compiled_model_runs_uncompiled_to_be_seen(how):
    """Compiled code calls nothing that can be seen, so the code it was made of runs."""
    model, given = model_of("llama"), inputs_of("llama", padded=False)
    wanted = trace(model, given)
    if how == "forward":
        model.forward = torch.compile(model.forward, backend="eager")
    else:
        model.compile(backend="eager")
    found = trace(model, given)
    assert found.names == wanted.names
    assert torch.equal(found.layers[1].q, wanted.layers[1].q)


def test_three_lines_are_enough():
    """A model of transformers, its inputs, one call: the weights of any layer and head."""
    model = model_of("llama")
    inputs = {"input_ids": torch.tensor([[5, 7, 11, 13, 17]])}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        weights = trace(model, inputs).weights(1, 4)
    assert weights.shape == (5, 5)
    assert torch.allclose(weights.sum(-1), torch.ones(5))
