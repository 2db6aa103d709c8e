"""The cost model, against what PyTorch counts and what the tensors hold."""

from functools import partial

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from regard.attention.softmax import attend, weights
from regard.costs.formula import symbols
from regard.costs.model import Latent, cost, leading, parameters, sizes_of, what_if
from regard.errors import ArgumentError, UnsupportedError
from regard.layers.attention import MultiHeadAttention, split_heads
from regard.layers.block import BlockConfig
from regard.layers.cache import LayerCache
from regard.models.families import FAMILIES
from regard.models.transformer import Transformer, TransformerConfig

# Small, of distinct primes where the family leaves them free; heads need a common factor.
BLOCK = {"model_dim": 30, "n_head": 6, "ff_dim": 37}
CONFIGS = {
    "multi-head": TransformerConfig(vocab=41, block=BlockConfig(**BLOCK), n_decoder_layer=3),
    "grouped": TransformerConfig(
        vocab=41,
        block=BlockConfig(
            **BLOCK,
            n_kv_head=3,
            norm="rms",
            gated=True,
            attention_bias=False,
            ff_bias=False,
            v_dim=7,
            qk_dim=4,
        ),
        n_decoder_layer=2,
        positions="rotary",
        tied=False,
    ),
    "multi-query": TransformerConfig(
        vocab=41, block=BlockConfig(**BLOCK, n_kv_head=1, out_bias=False), n_decoder_layer=1
    ),
    "encoder": FAMILIES["bert"].config(
        {
            "vocab_size": 41,
            "num_hidden_layers": 2,
            "max_position_embeddings": 53,
            "hidden_size": 30,
            "num_attention_heads": 6,
            "intermediate_size": 37,
            "architectures": ["BertForMaskedLM"],
        }
    ),
    "pooled encoder": FAMILIES["bert"].config(
        {
            "vocab_size": 41,
            "num_hidden_layers": 1,
            "max_position_embeddings": 53,
            "hidden_size": 30,
            "num_attention_heads": 6,
            "intermediate_size": 37,
        }
    ),
    "encoder-decoder": FAMILIES["t5"].config(
        {"vocab_size": 41, "d_model": 30, "d_kv": 7, "d_ff": 37, "num_layers": 2, "num_heads": 6}
    ),
}
each_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


@pytest.fixture
def plain(monkeypatch):
    """Every layer takes the plain path, whose products the counter sees: fused kernels count as 0."""
    monkeypatch.setattr("regard.layers.attention.attend", partial(attend, path="plain"))


def counted(run):
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def tokens(batch, length):
    return torch.randint(41, (batch, length))


def passed(model, batch, length, **options):
    """A forward pass; both sequences of an encoder-decoder are `length` long."""
    both = (tokens(batch, length),) if model.config.kind == "encoder-decoder" else ()
    return model(tokens(batch, length), *both, **options)


@each_config
def test_a_training_step_costs_what_the_counter_counts(config, plain):
    """Forward and backward products, of every family, to the last operation."""
    model = Transformer(config)

    def step():
        output = passed(model, 3, 11)
        loss = output.hidden.sum() if output.logits is None else output.logits.sum()
        (loss if output.pooled is None else loss + output.pooled.sum()).backward()

    assert counted(step) == cost(config, "train", batch=3, length=11).operations


@each_config
@torch.no_grad()
def test_a_prefill_costs_what_the_counter_counts(config, plain):
    """The prompt's products and one row of the vocabulary's; an encoder-decoder reads and starts."""
    model = Transformer(config).eval()
    options = {"logits": "last"} if config.kind == "decoder" else {}
    if config.kind == "encoder-decoder":
        run = partial(model, tokens(3, 11), tokens(3, 1), **options)
    else:
        run = partial(passed, model, 3, 11, **options)
    assert counted(run) == cost(config, "prefill", batch=3, length=11).operations


@pytest.mark.parametrize("name", ["multi-head", "grouped", "multi-query", "encoder-decoder"])
@torch.no_grad()
def test_a_decoding_step_costs_what_the_counter_counts_and_the_cache_holds(name, plain):
    """One token after 13: its products, and afterwards the bytes of the cache."""
    config = CONFIGS[name]
    model, cache = Transformer(config).eval(), Transformer(config).new_cache()
    if config.kind == "encoder-decoder":
        memory = model(tokens(3, 17)).memory
        run = partial(model, None, memory=memory, cache=cache, logits="last")
        run(target=tokens(3, 13))
        step = partial(run, target=tokens(3, 1))
        found = cost(config, "decode", batch=3, length=13, memory=17)
    else:
        model(tokens(3, 13), cache=cache)
        step = partial(model, tokens(3, 1), cache=cache, logits="last")
        found = cost(config, "decode", batch=3, length=13)
    assert counted(step) == found.operations
    assert cache.bytes == found.cache_bytes


@each_config
def test_the_bytes_of_the_weights_are_those_of_the_tensors(config):
    """Parameters are counted to the last, in the dtype they are kept in."""
    for dtype in (torch.float32, torch.bfloat16):
        held = sum(each.nbytes for each in Transformer(config).to(dtype).parameters())
        assert cost(config, "train", length=1, dtype=dtype).weight_bytes == held


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_the_published_sizes_have_their_parameters(family):
    """The four families at full size, built without memory."""
    for size in FAMILIES[family].sizes.values():
        config = FAMILIES[family].config(size)
        with torch.device("meta"):
            model = Transformer(config)
        n_parameter = sum(each.numel() for each in model.parameters())
        assert parameters(config).value(sizes_of(config)) == n_parameter


@pytest.mark.parametrize("name", ["elu1", "relu", "quadratic", "favor"])
@torch.no_grad()
def test_linear_attention_costs_what_the_counter_counts(name):
    """The sums and their reading, not causal, with 3 key heads for 6."""
    layer = MultiHeadAttention(30, 6, n_kv_head=3, qk_dim=5, v_dim=7, feature_map=name)
    block = BlockConfig(
        **BLOCK, n_kv_head=3, qk_dim=5, v_dim=7, feature_map=name, attention_bias=False, ff_bias=False
    )
    config = TransformerConfig(vocab=41, block=block, n_encoder_layer=1, lm_head="none")
    found = cost(config, "prefill", batch=2, length=11)
    ours = [row.n_operation for row in found.rows if " ff " not in row.name]
    assert counted(lambda: layer(torch.randn(2, 11, 30))) == sum(ours)


@torch.no_grad()
def test_a_linear_layers_cache_is_its_state():
    """The state has the formula's bytes, however long the past."""
    block = BlockConfig(**BLOCK, n_kv_head=3, feature_map="quadratic")
    config = TransformerConfig(vocab=41, block=block, n_decoder_layer=2)
    model, cache = Transformer(config).eval(), Transformer(config).new_cache()
    for length in (13, 29):
        model(tokens(3, length), cache=cache)
        assert cache.bytes == cost(config, "decode", batch=3, length=cache.length - 1).cache_bytes


@torch.no_grad()
def test_latent_attention_costs_what_its_products_count():
    """The paper's equations with absorbed matrices, written out, counted and held."""
    config = CONFIGS["grouped"]
    sizes = sizes_of(config)
    d, h, k, v = (sizes[name] for name in "dhkv")
    c, r, batch, past = 11, 3, 2, 13
    x, held = torch.randn(batch, 1, d), torch.randn(batch, past + 1, c + r)

    def step():
        q = (x @ torch.randn(d, h * (k + r))).unflatten(-1, (h, k + r))
        held[:, -1:] = x @ torch.randn(d, c + r)
        into = torch.einsum("bthk,hkc->bthc", q[..., :k], torch.randn(h, k, c))
        asked = torch.cat([into, q[..., k:]], -1)[:, 0]
        weights = torch.softmax(asked @ held.mT, -1)
        back = torch.einsum("bhc,hcv->bhv", weights @ held[..., :c], torch.randn(h, c, v))
        return back.flatten(1) @ torch.randn(h * v, d)

    found = cost(config, "decode", batch=batch, length=past, latent=Latent(c, r))
    ours = [
        row.n_operation for row in found.rows if not row.name.startswith("ff ") and row.name != "vocabulary"
    ]
    assert sum(ours) == config.n_decoder_layer * counted(step)
    assert found.cache_bytes == config.n_decoder_layer * held.nbytes


@torch.no_grad()
def test_the_bytes_of_a_decoding_step_are_those_of_its_tensors():
    """Operands and results of a layer's products, each read and written once, are the formula's bytes."""
    layer, cache = MultiHeadAttention(30, 6, n_kv_head=2, qk_dim=5, v_dim=7), LayerCache()
    layer(torch.randn(3, 13, 30), cache=cache)
    x = torch.randn(3, 1, 30)
    q = split_heads(layer.query(x), 6)
    new_k, new_v = layer.key(x), layer.value(x)
    keys, values, _ = cache.append(split_heads(new_k, 2), split_heads(new_v, 2))
    table = weights(q, keys)
    out = torch.empty(3, 1, 6 * 7)
    y = layer.out(out)
    projections = [x, layer.query.weight, q, x, layer.key.weight, new_k, x, layer.value.weight, new_v]
    scores, softmax, weighted = [q, keys, table], [table, table], [table, values, out]
    moved = sum(
        each.nbytes for each in [*projections, *scores, *softmax, *weighted, out, layer.out.weight, y]
    )
    block = BlockConfig(**BLOCK, n_kv_head=2, qk_dim=5, v_dim=7, attention_bias=False)
    config = TransformerConfig(vocab=41, block=block, n_decoder_layer=1, lm_head="none")
    rows = cost(config, "decode", batch=3, length=13).rows
    assert sum(row.n_byte for row in rows if row.name.partition(" ")[0] not in ("ff", "embedding")) == moved


def test_the_leading_terms_are_the_papers():
    """Shazeer 2019, 2.4.1 and 3.1, and the b h n scores that are easily forgotten."""
    for kind in ("multi-head", "multi-query"):
        assert set(leading(kind, "operations").split(" + ")) == {"b d²", "b n d"}
    assert set(leading("multi-head", "bytes").split(" + ")) == {"d²", "b d", "b n d"}
    assert set(leading("multi-query", "bytes").split(" + ")) == {"d²", "b d", "b n d / h", "b n h"}
    assert set(leading("grouped", "bytes").split(" + ")) == {"d²", "b d", "b n g d / h", "b n h"}


def test_smollm2_with_other_key_heads_by_hand():
    """The cache of 8192 tokens: 2 x 30 layers x 64 numbers x 4 bytes a key head, sequence and token."""
    config = FAMILIES["llama"].config(FAMILIES["llama"].sizes["smollm2"])
    cases = what_if(config)
    assert list(cases) == ["1 kv (multi-query)", "3 kv (grouped)", "9 kv (multi-head)", "latent"]
    held = [
        cost(c, "decode", batch=8, length=8191, latent=latent).cache_bytes for c, latent in cases.values()
    ]
    one = 2 * 30 * 64 * 4 * 8 * 8192
    assert held == [one, 3 * one, 9 * one, one // 128 * (4 * 64 + 32)]


def test_fused_kernels_save_the_table_of_scores():
    """Its write, the softmax's read and write, and the last read: 4 b h t (n + t) numbers a layer."""
    config = CONFIGS["multi-head"]
    plain, fused = (cost(config, "prefill", batch=3, length=11, fused=each) for each in (False, True))
    assert plain.bytes - fused.bytes == 3 * 4 * (3 * 6 * 11 * 11) * 4
    assert plain.operations == fused.operations


def test_a_formula_prints_what_it_computes():
    """Products, powers and quotients, as text and as a number."""
    b, n, d, h = symbols("b n d h")
    work = 2 * b * d * d + b * n * d / h + 3
    assert str(work) == "3 + b n d / h + 2 b d²"
    assert work.value({"b": 5, "n": 7, "d": 6, "h": 3}) == 2 * 5 * 36 + 5 * 7 * 2 + 3
    assert str(work.substituted({"d": h * 2, "b": 1})) == "3 + 2 n + 8 h²"
    with pytest.raises(ArgumentError, match="needs 'd'"):
        work.value({"b": 5, "n": 7, "h": 3})
    with pytest.raises(ArgumentError, match="no whole number"):
        work.value({"b": 1, "n": 7, "d": 1, "h": 3})


@pytest.mark.parametrize(
    ("options", "error", "reason"),
    [
        ({"phase": "prefill", "length": 0}, ArgumentError, "length at least 1"),
        ({"phase": "decode", "length": 3, "batch": 0}, ArgumentError, "batch and memory must be at least 1"),
        (
            {"phase": "decode", "length": 3, "memory": 5},
            ArgumentError,
            "only an encoder-decoder has a memory",
        ),
        ({"phase": "decode", "length": 3, "latent": Latent(4, 2)}, UnsupportedError, "without biases"),
    ],
    ids=["length", "batch", "memory", "latent"],
)
def test_what_has_no_cost_is_refused(options, error, reason):
    """Each refusal says the rule."""
    phase, options = options["phase"], {k: v for k, v in options.items() if k != "phase"}
    with pytest.raises(error, match=reason):
        cost(CONFIGS["multi-head"], phase, **options)


def test_an_encoder_has_no_decoding_step():
    """It sees its whole input at once."""
    with pytest.raises(UnsupportedError, match="no decoding step"):
        cost(CONFIGS["encoder"], "decode", length=3)
