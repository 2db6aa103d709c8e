"""Pruning: what is left computes what masking would, is smaller, decodes, is traced, saves and loads."""

import json
from contextlib import nullcontext

import pytest
import torch

from regard.decoding.loop import generate
from regard.errors import UnsupportedError
from regard.experiments import mean_loss, prune, pruning_curve, ranked_heads, save_pruned
from regard.experiments.losses import gated
from regard.files.loading import Loaded, ModelFacts, load, save
from regard.files.tokenizer import byte_tokenizer
from regard.heads import measure
from regard.heads.model import attention_of, layers_of
from regard.layers.attention import MultiHeadAttention
from regard.layers.block import BlockConfig, attention_options
from regard.layers.cache import LayerCache
from regard.models.families import FAMILIES
from regard.models.pruned import PrunedAttention
from regard.models.transformer import Transformer
from regard.tracing.take import trace

# Uneven groups, a key head that goes with its last query head, a layer left whole, one with nothing left.
GONE = [(0, 0), (0, 4), (0, 5), (2, 0), (2, 1), (2, 2), (2, 3), (2, 4), (2, 5)]
TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4]])
SIZES = {
    "gpt2": {"vocab_size": 263, "n_positions": 29, "n_embd": 24, "n_layer": 3, "n_head": 6},
    "bert": {
        "vocab_size": 263,
        "num_hidden_layers": 3,
        "max_position_embeddings": 29,
        "hidden_size": 24,
        "num_attention_heads": 6,
        "intermediate_size": 17,
        "architectures": ["BertForMaskedLM"],
    },
    "llama": {
        "vocab_size": 263,
        "num_hidden_layers": 3,
        "hidden_size": 24,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "intermediate_size": 17,
    },
    "t5": {"vocab_size": 263, "d_model": 24, "d_kv": 5, "d_ff": 17, "num_layers": 2, "num_heads": 6},
}


@pytest.fixture(params=SIZES)
def loaded(request):
    """A small model of each family, its weights large enough that every head matters."""
    return small(request.param)


def gate_without(loaded, heads):
    """The gate that silences these heads: what `prune` must equal."""
    gate = torch.ones(len(loaded.model.attention_names), loaded.model.config.block.n_head)
    for at in heads:
        gate[at] = 0.0
    return gate.to(next(loaded.model.parameters()))


def small(family):
    pruned_model = FAMILIES[family]
    model = Transformer(pruned_model.config(SIZES[family])).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.normal_(std=0.3)
    config = model.config
    block = config.block
    facts = ModelFacts(
        name=f"small {family}",
        family=family,
        n_layer=config.n_encoder_layer + config.n_decoder_layer,
        n_head=block.n_head,
        n_kv_head=block.n_kv_head or block.n_head,
        model_dim=block.model_dim,
        vocab=config.vocab,
        n_position=config.n_position,
        n_parameter=sum(parameter.numel() for parameter in model.parameters()),
        source="random weights, seed 0",
    )
    start = 0 if family == "t5" else None
    return Loaded(model, byte_tokenizer(263), facts, start_token=start)


def run(model, gate=None):
    with torch.no_grad(), nullcontext() if gate is None else gated(model, gate):
        if model.config.kind == "encoder-decoder":
            return model(TOKENS, TOKENS.flip(1)).logits
        return model(TOKENS).logits


def test_pruned_equals_masked(loaded):
    """The smaller model computes what the whole one does with those heads silenced, to rounding."""
    masked = run(loaded.model, gate_without(loaded, GONE))
    pruned = prune(loaded, GONE)
    # Products are summed in another order: a few roundings of the largest logit.
    torch.testing.assert_close(run(pruned.model), masked, rtol=0, atol=3e-5 * float(masked.abs().max()))
    assert (run(loaded.model) - masked).abs().max() > 0.1  # the heads mattered


def test_pruned_is_smaller_by_the_weights_of_its_heads(loaded):
    """Each head takes its rows of query and output with it, a key head goes with its last query head."""
    pruned, block = prune(loaded, GONE), loaded.model.config.block
    qk_dim = block.qk_dim or block.model_dim // block.n_head
    bias = block.attention_bias
    one = qk_dim * (block.model_dim + bias)  # a head's part of query, key or value
    n_kv = (block.n_kv_head or block.n_head) // 2 if loaded.facts.family == "llama" else None
    # Layer 0 loses heads 0, 4, 5. In grouped heads (0 1 2 | 3 4 5) both key heads stay. Layer 2 loses all.
    n_kv_gone = 0 + 2 if n_kv is not None else 3 + 6
    expected = 9 * (one + qk_dim * block.model_dim) + n_kv_gone * 2 * one
    before, after = loaded.facts.n_parameter, pruned.facts.n_parameter
    assert before - after == expected
    assert after == sum(parameter.numel() for parameter in pruned.model.parameters())
    assert pruned.facts.notes[-1].startswith("Pruned: ")


def test_the_given_model_stays_as_it_was(loaded):
    """Pruning makes a new model: the old one still has all its heads and numbers."""
    before = run(loaded.model)
    prune(loaded, GONE)
    assert torch.equal(run(loaded.model), before)
    assert loaded.model.config.kept_heads is None


def test_pruning_twice_is_pruning_once(loaded):
    """Heads keep their numbers, so what is pruned later is named as before."""
    once = prune(loaded, GONE)
    twice = prune(prune(loaded, GONE[4:]), GONE[:4])
    assert layers_of(twice) == layers_of(once)
    assert torch.equal(run(twice.model), run(once.model))


def test_nothing_removed_is_the_model_itself(loaded):
    """No head pruned, no head lost."""
    same = prune(loaded, [])
    assert same.model.config == loaded.model.config
    assert torch.equal(run(same.model), run(loaded.model))


def test_a_pruned_model_saves_and_loads(loaded, tmp_path):
    """Its folder gives the same numbers back, and says which heads are left."""
    pruned = prune(loaded, GONE)
    save_pruned(pruned, tmp_path / "pruned")
    back = load(tmp_path / "pruned")
    assert back.model.config == pruned.model.config
    assert torch.equal(run(back.model), run(pruned.model))
    assert back.facts.notes[-1] == pruned.facts.notes[-1]
    stated = json.loads((tmp_path / "pruned" / "config.json").read_text())
    assert stated["kept_heads"][0] == [1, 2, 3]
    assert stated["model_type"] == "regard_pruned"


def test_export_to_a_published_format_refuses(loaded, tmp_path):
    """No family's format can give layers different heads: the error says so, and nothing is written."""
    with pytest.raises(UnsupportedError, match=r"pruned: \d+ of \d+ heads are left, .* the same heads"):
        save(prune(loaded, GONE), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_gates_still_count_heads_as_before(loaded):
    """Silencing a head that is left, by its old number, is pruning it too."""
    pruned = prune(loaded, GONE)
    gate = torch.ones(len(loaded.model.attention_names), 6)
    gate[0, 3] = 0.0
    both = prune(pruned, [(0, 3)])
    largest = float(run(both.model).abs().max())
    torch.testing.assert_close(run(pruned.model, gate), run(both.model), rtol=0, atol=3e-5 * largest)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_gated_trace_of_a_pruned_model_checks_the_heads_that_are_left(family):
    """The trace of a pruned model takes the gates of its own heads: its outputs are recovered."""
    pruned = prune(small(family), GONE)
    gate = 0.5 + torch.rand(3, 6)
    with gated(pruned, gate):
        traced = trace(pruned, TOKENS[:1])
    assert [layer.n_head for layer in traced.layers] == [3, 6]
    assert traced.checks.output < 1e-4
    assert traced.checks.passed


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_decoding_with_a_cache_equals_the_whole_sequence(family):
    """Token by token a pruned model says what it says at once, with uneven groups and an empty layer."""
    loaded = small(family)
    pruned = prune(loaded, GONE)
    cache = pruned.model.new_cache()
    with torch.no_grad():
        whole = pruned.model(TOKENS).logits
        steps = [pruned.model(TOKENS[:, i : i + 1], cache=cache).logits for i in range(11)]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, rtol=1e-4, atol=1e-4)
    written = generate(pruned, [[5, 6, 7]], max_new=6).tokens[0]
    gate = gate_without(loaded, GONE)
    ids = torch.tensor([[5, 6, 7]])
    for token in written:
        with torch.no_grad(), gated(loaded, gate):
            assert int(loaded.model(ids).logits[0, -1].argmax()) == int(token)
        ids = torch.cat([ids, torch.tensor([[int(token)]])], dim=1)


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_a_pruned_model_is_traced_and_measured(family):
    """The trace has the heads that are left, and recovers their weights; an empty layer has none."""
    pruned = prune(small(family), GONE)
    pruned_model = trace(pruned, TOKENS[:1])
    assert pruned_model.checks.passed
    assert [layer.n_head for layer in pruned_model.layers] == [3, 6]
    measured = measure(pruned_model)
    assert measured.n_heads == (3, 6)
    assert measured["entropy"][0, 3:].isnan().all()


def test_weights_of_the_heads_left_are_those_they_had():
    """In the first layer, where nothing before is gone, a kept head looks exactly where it did."""
    loaded = small("llama")
    before, after = trace(loaded, TOKENS[:1]), trace(prune(loaded, GONE), TOKENS[:1])
    for place, head in enumerate((1, 2, 3)):
        torch.testing.assert_close(after.weights(0, place), before.weights(0, head), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kept", [(0, 1, 2), (0, 3), (1, 2, 5), (0, 1, 2, 4), (5,), ()])
def test_a_key_head_nobody_uses_is_gone(kept):
    """A layer keeps the key heads of its heads, once each, whatever groups are left; an empty layer none."""
    block = BlockConfig(model_dim=24, n_head=6, n_kv_head=2, ff_dim=5)
    layer, cache = PrunedAttention(block, kept, causal=True), LayerCache()
    assert layer(torch.randn(2, 7, 24), cache=cache).shape == (2, 7, 24)
    assert layer.n_kv_head == cache.k.shape[1] == len({head // 3 for head in kept})


def test_all_weights_can_be_had_from_uneven_groups():
    """return_weights gives each head its own rows, which sum to 1."""
    block = BlockConfig(model_dim=24, n_head=6, n_kv_head=2, ff_dim=5)
    layer = PrunedAttention(block, (0, 3, 4), causal=True)
    _, weights = layer(torch.randn(2, 7, 24), return_weights=True)
    assert weights.shape == (2, 3, 7, 7)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 7))


@pytest.mark.parametrize("kept", [(0, 1, 3, 4), (0, 3, 4)], ids=["even groups", "uneven groups"])
def test_linear_attention_is_pruned_too(kept):
    """Without some heads a linear layer gives what it gives when their part of the output matrix is 0."""
    config = BlockConfig(model_dim=24, n_head=6, n_kv_head=2, ff_dim=5, feature_map="elu1")
    whole = MultiHeadAttention(**attention_options(config, causal=True))
    pruned = PrunedAttention(config, kept, causal=True)
    kv_heads = sorted({head // 3 for head in kept})
    with torch.no_grad():
        for name, heads in (("query", kept), ("key", kv_heads), ("value", kv_heads)):
            for part in ("weight", "bias"):
                tensor = getattr(getattr(whole, name), part)
                getattr(getattr(pruned, name), part).copy_(
                    tensor.unflatten(0, (-1, 4))[list(heads)].flatten(0, 1)
                )
        columns = whole.out.weight.unflatten(1, (6, 4))
        pruned.out.weight.copy_(columns[:, list(kept)].flatten(1))
        pruned.out.bias.copy_(whole.out.bias)
        columns[:, [head for head in range(6) if head not in kept]] = 0
    x, cache = torch.randn(2, 7, 24), LayerCache()
    torch.testing.assert_close(pruned(x), whole(x))
    stepped = torch.cat([pruned(token, cache=cache) for token in x.split(1, 1)], 1)
    torch.testing.assert_close(stepped, whole(x))


def test_least_important_heads_cost_least():
    """On a model whose head importance is known, the order matters: random lies between the two others."""
    loaded = small("gpt2")
    importance = torch.arange(18.0).reshape(6, 3).T
    with torch.no_grad():  # a head's output projection says how much it can do
        for layer, name in enumerate(loaded.model.attention_names):
            out = attention_of(loaded.model, name).out
            for head in range(6):
                out.weight[:, 4 * head : 4 * head + 4] *= 2 ** float(importance[layer, head] - 17)
    texts = ["abcabcabcabcab", "xyzzyxyzzyxy"]
    logits = run(loaded.model)

    def change(order, seed=0):
        gone = ranked_heads(loaded, importance, order, seed)[:6]
        return float((run(prune(loaded, gone).model) - logits).abs().mean())

    # One draw may hold the heads that matter most: the claim is about the mean of draws.
    random = sum(change("random", seed) for seed in range(7)) / 7
    assert change("least first") < random < change("most first")
    curve = pruning_curve(loaded, texts, importance, shares=(0.0, 0.5, 1.0))
    assert curve.metric[0] == pytest.approx(mean_loss(loaded, texts))
    assert curve.share_removed == (0.0, 0.5, 1.0)
    everything = gate_without(loaded, ranked_heads(loaded, importance))
    with gated(loaded, everything):
        assert curve.metric[2] == pytest.approx(mean_loss(loaded, texts), rel=1e-5)
