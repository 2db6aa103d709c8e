"""Circuits, splits and the logit lens of models of others: against ours of the same weights, and by hand."""

import pytest
import torch
import transformers
from heads.test_foreign_heads import COMMON, SIZES, TEXTS, foreign
from torch import nn

import regard
from regard.errors import UnsupportedError
from regard.heads import composition, logit_lens, ov_circuit, qk_circuit, score_split
from regard.tracing.take import trace

IDS = torch.tensor(TEXTS[:1])
N_HEAD, DIM = 4, 6
PUBLISHED = {
    "gpt2": transformers.GPT2Config(**COMMON, n_embd=24, n_head=4, n_layer=2, n_positions=32),
    "llama": transformers.LlamaConfig(**COMMON, **SIZES, num_key_value_heads=2, max_position_embeddings=32),
}


@torch.no_grad()
def uneven(model, bias=0.3):
    """The model with norms and biases that do something."""
    torch.manual_seed(5)
    for module in model.modules():
        if "norm" in type(module).__name__.lower():
            module.weight.uniform_(0.5, 1.5)
        if isinstance(getattr(module, "bias", None), torch.Tensor):
            module.bias.normal_(std=bias) if bias else module.bias.zero_()
    return model


@pytest.mark.parametrize("family", PUBLISHED)
def test_circuits_are_those_of_our_model_of_the_same_weights(family, tmp_path):
    """Fused and separate projections, learned and rotary positions: every table, part and score."""
    torch.manual_seed(3)
    theirs = uneven(transformers.AutoModelForCausalLM.from_config(PUBLISHED[family]).eval())
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.dim() > 1:
                parameter.mul_(6)
    theirs.save_pretrained(tmp_path)
    ours = regard.load(tmp_path).model
    for head in (0, 3):
        torch.testing.assert_close(
            ov_circuit(theirs, 1, head).table(), ov_circuit(ours, 1, head).table(), rtol=1e-4, atol=1e-3
        )
        for distance in (0, 5):
            one, other = (qk_circuit(model, 0, head, distance=distance).table() for model in (theirs, ours))
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)
    for side in "qkv":
        one, other = (getattr(composition(model), side) for model in (theirs, ours))
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6, equal_nan=True)
    one, other = (score_split(model, IDS, 1, 2, 5, 3) for model in (theirs, ours))
    assert one.names == other.names
    torch.testing.assert_close(one.parts, other.parts, rtol=1e-3, atol=1e-3)
    lens = logit_lens(theirs, IDS, position=None)
    torch.testing.assert_close(lens, logit_lens(ours, IDS, position=None), rtol=1e-4, atol=1e-3)


def matrices(name, model, head):
    """W_Q, W_K, W_V, W_O of a head of layer 0 by the names that a family gives them, and its first norm."""
    block = model.get_submodule({"gpt_neox": "gpt_neox.layers.0", "gptj": "transformer.h.0",
                                 "opt": "model.decoder.layers.0"}.get(name, "model.layers.0"))  # fmt: skip
    if name == "gpt_neox":
        q, k, v = block.attention.query_key_value.weight.view(N_HEAD, 3, DIM, 24)[head]
        return q, k, v, block.attention.dense.weight[:, 6 * head : 6 * head + 6], block.input_layernorm
    attention = block.attn if name == "gptj" else block.self_attn
    out = attention.o_proj if hasattr(attention, "o_proj") else attention.out_proj
    of_head = [attention.q_proj.weight.view(N_HEAD, DIM, 24)[head]]
    for matrix in (attention.k_proj.weight, attention.v_proj.weight):
        heads = matrix.view(-1, DIM, 24)
        of_head.append(heads[head * len(heads) // N_HEAD])
    norm = {"gptj": "ln_1", "opt": "self_attn_layer_norm"}.get(name, "input_layernorm")
    return *of_head, out.weight[:, 6 * head : 6 * head + 6], getattr(block, norm)


def through(norm, x):
    """Rows of x as matrices read them, not divided by their length."""
    weight = norm.weight + 1 if "Gemma" in type(norm).__name__ else norm.weight
    return (x - x.mean(-1, keepdim=True) if isinstance(norm, nn.LayerNorm) else x) * weight


FAMILIES = ["gpt_neox", "opt", "gptj", "starcoder2", "gemma", "qwen3"]


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_an_ov_circuit_is_the_product_of_its_matrices(name):
    """Whatever the family calls them and however it packs them."""
    model = uneven(foreign(name))
    _, _, v, o, norm = matrices(name, model, 2)
    last = [module for module in model.modules() if "norm" in type(module).__name__.lower()][-1]
    if name == "opt":
        last = model.model.decoder.final_layer_norm
    vectors, unembed = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    wanted = through(last, through(norm, vectors) @ v.T @ o.T) @ unembed.T
    torch.testing.assert_close(ov_circuit(model, 0, 2).table(), wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "qwen3"])
@torch.no_grad()
def test_the_parts_of_a_score_sum_to_the_models_own(name):
    """Rotary turns of any kind, queries that are scaled beforehand; every writer has a name."""
    model = uneven(foreign(name))
    split = score_split(model, IDS, 1, 3, 6, 2)
    wanted = trace(model, IDS).layers[1].score_parts(3, 6, 2).similarity
    assert split.score == pytest.approx(wanted, rel=1e-3, abs=1e-3)
    assert split.names == ("embedding", *(f"head 0.{head}" for head in range(4)), "feed-forward 0", "bias")


@pytest.mark.parametrize("name", ["gpt_neox", "gptj", "starcoder2", "gemma"])
@torch.no_grad()
def test_a_qk_circuit_is_the_score_of_two_tokens_so_far_apart(name):
    """The first layer's own score of two tokens, times the lengths that its norm divided by."""
    model = uneven(foreign(name), bias=0.0)
    norm = matrices(name, model, 1)[-1]
    layer = trace(model, IDS).layers[0]
    x = model.get_input_embeddings().weight[IDS[0]]
    bare = x - x.mean(-1, keepdim=True) if isinstance(norm, nn.LayerNorm) else x
    lengths = bare.square().mean(-1).sqrt()
    for query, key in ((6, 2), (3, 3)):
        wanted = layer.score_parts(1, query, key).similarity * lengths[query] * lengths[key]
        got = qk_circuit(model, 0, 1, distance=query - key).table()[IDS[0, query], IDS[0, key]]
        assert float(got) == pytest.approx(float(wanted), rel=2e-3, abs=1e-3)


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_a_logit_lens_is_each_hidden_state_through_the_end(name):
    """The stream that the model itself returns, its last norm and its head; the last is its output."""
    model = uneven(foreign(name))
    out = model(IDS, output_hidden_states=True)
    lens = logit_lens(model, IDS, position=None)
    assert torch.equal(lens[-1], out.logits)
    last = [module for module in model.modules() if "norm" in type(module).__name__.lower()][-1]
    if name == "opt":
        last = model.model.decoder.final_layer_norm
    wanted = model.get_output_embeddings()(last(out.hidden_states[1]))
    torch.testing.assert_close(lens[1], wanted, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(logit_lens(model, IDS), lens[:, :, -1])


def test_what_no_matrix_gives_has_no_circuit():
    """Queries with a norm of their own; heads whose output a norm changes; scores with a bias."""
    with pytest.raises(UnsupportedError, match=r"the queries of model.layers.0.self_attn are not what one"):
        qk_circuit(foreign("qwen3"), 0, 0)
    config = transformers.Gemma2Config(**{**COMMON, **SIZES, "num_key_value_heads": 2, "head_dim": 6})
    with pytest.raises(UnsupportedError, match="residual stream"):
        ov_circuit(transformers.Gemma2ForCausalLM(config).eval(), 0, 0)
    bloom = transformers.BloomConfig(**{**COMMON, "hidden_size": 24, "n_head": 4, "n_layer": 2})
    with pytest.raises(UnsupportedError, match="a bias or a cap"):
        score_split(transformers.BloomForCausalLM(bloom).eval(), IDS, 1, 0, 5, 2)
    roberta = transformers.RobertaForMaskedLM(transformers.RobertaConfig(**{**COMMON, **SIZES})).eval()
    with pytest.raises(UnsupportedError, match="circuits are of decoders"):
        composition(roberta)
