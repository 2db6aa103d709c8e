"""Blocks with latent attention and with the delta rule: what they compute, decode, learn and refuse."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

import regard
from regard.attention.visibility import Visibility
from regard.decoding.loop import generate
from regard.errors import ArgumentError, UnsupportedError
from regard.files.loading import load
from regard.layers.attention import MultiHeadAttention
from regard.layers.block import Block, BlockConfig
from regard.layers.cache import KVCache, LayerCache
from regard.layers.delta import KEEP_BIAS, DeltaAttention
from regard.layers.latent import LatentAttention
from regard.layers.positions import RelativeBias, Rotary
from regard.models.families import published_config
from regard.models.transformer import Transformer, TransformerConfig

MODEL_DIM, N_HEAD, FF_DIM, VOCAB = 15, 3, 17, 23
SIZES = {"model_dim": MODEL_DIM, "n_head": N_HEAD, "ff_dim": FF_DIM, "v_dim": 7}
LATENT = BlockConfig(**SIZES, latent_dim=11, latent_rotary_dim=4)
DELTA = BlockConfig(**SIZES, delta=True)
KINDS = {
    "latent rotary": {"block": LATENT, "positions": "rotary"},
    "latent relative": {"block": LATENT, "positions": "relative"},
    "latent without bias, parallel": {
        "block": replace(LATENT, attention_bias=False, parallel=True, norm="rms"),
        "positions": "none",
    },
    "delta": {"block": DELTA},
    "delta without positions": {"block": replace(DELTA, attention_bias=False), "positions": "none"},
}


def model_of(kind, **more):
    torch.manual_seed(3)
    config = TransformerConfig(vocab=VOCAB, n_decoder_layer=2, n_position=61, **KINDS[kind], **more)
    return Transformer(config).double().eval()


def block_of(config):
    torch.manual_seed(5)
    block = Block(config, causal=True).double().eval()
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return block


def rest(block, x, attended):
    """The block around its attention, written out."""
    x = x + attended
    h = F.layer_norm(x, (MODEL_DIM,), block.ff_norm.weight, block.ff_norm.bias)
    up = F.gelu(h @ block.ff.up.weight.T + block.ff.up.bias)
    return x + up @ block.ff.down.weight.T + block.ff.down.bias


@torch.no_grad()
def test_a_latent_block_is_the_layer_with_residuals_and_norms():
    block, x = block_of(LATENT), torch.randn(2, 9, MODEL_DIM, dtype=torch.float64)
    layer = LatentAttention(
        MODEL_DIM, N_HEAD, latent_dim=11, rotary_dim=4, qk_dim=5, v_dim=7, bias=True, norm_eps=1e-5
    ).double()
    layer.load_state_dict(block.attention.state_dict())
    turn = Rotary(4)(torch.arange(9)[None])
    visible = Visibility(key_mask=torch.rand(2, 9) < 0.8)
    norm = block.attention_norm
    attended = layer(F.layer_norm(x, (MODEL_DIM,), norm.weight, norm.bias), rotary=turn, visible=visible)
    torch.testing.assert_close(block(x, rotary=turn, visible=visible), rest(block, x, attended))


@torch.no_grad()
def test_a_delta_block_is_the_layer_with_residuals_and_norms():
    block, x = block_of(DELTA), torch.randn(2, 9, MODEL_DIM, dtype=torch.float64)
    layer = DeltaAttention(MODEL_DIM, N_HEAD, v_dim=7, bias=True).double()
    layer.load_state_dict(block.attention.state_dict())
    norm = block.attention_norm
    attended, _ = layer(F.layer_norm(x, (MODEL_DIM,), norm.weight, norm.bias))
    torch.testing.assert_close(block(x), rest(block, x, attended))


@torch.no_grad()
def test_latent_scores_have_the_bias_in_both_forms():
    layer = block_of(LATENT).attention
    x = torch.randn(1, 6, MODEL_DIM, dtype=torch.float64)
    relative = RelativeBias(N_HEAD, 8, 5, bidirectional=False).double()
    torch.nn.init.normal_(relative.weight)
    bias = relative(6, 6, 0)
    naive, absorbed = (layer(x, bias=bias, absorbed=form) for form in (False, True))
    torch.testing.assert_close(naive, absorbed)
    assert (naive - layer(x)).abs().max() > 1e-3


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_steps_are_the_whole_pass(kind):
    """In pieces of several sizes, through the cache."""
    model, tokens = model_of(kind), torch.randint(VOCAB, (2, 13))
    cache = model.new_cache()
    steps = [model(part, cache=cache).logits for part in tokens.split([5, 1, 1, 4, 2], 1)]
    torch.testing.assert_close(torch.cat(steps, 1), model(tokens).logits)
    assert cache.length == 13


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_padding_on_the_left_changes_nothing(kind):
    """Neither in the whole pass nor in decoding, whatever the padding is."""
    model, tokens = model_of(kind), torch.randint(VOCAB, (1, 7))
    padded = torch.cat([torch.randint(VOCAB, (1, 4)), tokens], 1)
    key_mask = torch.arange(11)[None] >= 4
    alone = model(tokens).logits
    torch.testing.assert_close(model(padded, key_mask=key_mask).logits[:, 4:], alone)
    cache = model.new_cache()
    model(padded[:, :9], key_mask=key_mask[:, :9], cache=cache)
    for last in (10, 11):
        step = model(padded[:, last - 1 : last], key_mask=key_mask[:, :last], cache=cache).logits
    torch.testing.assert_close(step[:, -1], alone[:, -1])


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_beams_reorder_the_cache(kind):
    model, tokens = model_of(kind), torch.randint(VOCAB, (3, 6))
    cache = model.new_cache()
    model(tokens[:, :5], cache=cache)
    order = torch.tensor([2, 0, 2])
    cache.reorder(order)
    torch.testing.assert_close(
        model(tokens[order, 5:], cache=cache).logits, model(tokens[order]).logits[:, -1:]
    )


@torch.no_grad()
def test_caches_have_the_sizes_of_the_papers():
    """Latent: latent_dim + rotary_dim numbers a token. Delta: one state, however long the text."""
    for kind, numbers in (("latent rotary", 13 * (11 + 4)), ("delta", N_HEAD * 5 * 7)):
        cache = KVCache(2)
        model_of(kind)(torch.randint(VOCAB, (1, 13)), cache=cache)
        assert cache.bytes == 2 * numbers * 8


@pytest.mark.parametrize("kind", ["latent rotary", "delta"])
def test_a_model_learns_to_repeat(kind):
    """The second half of a text is its first: the loss falls from chance, log(vocab), to less than half."""
    torch.manual_seed(7)
    block = {"model_dim": 32, "n_head": 2, "ff_dim": 64}
    block |= {"delta": True} if kind == "delta" else {"latent_dim": 16, "latent_rotary_dim": 8}
    positions = "learned" if kind == "delta" else "rotary"
    config = TransformerConfig(vocab=5, block=BlockConfig(**block), n_decoder_layer=2, positions=positions)
    model = Transformer(config)
    data = torch.randint(5, (16, 5)).repeat(1, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(120):
        scores = model(data[:, :-1]).logits[:, 4:]
        loss = F.cross_entropy(scores.flatten(0, 1), data[:, 5:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 1.3
    assert losses[-1] < math.log(5) / 2
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_first_weights_are_those_of_their_matrices():
    """The short vector's matrix writes nothing to the residual stream, and fan-in is each matrix's own."""
    block = replace(LATENT, model_dim=150, latent_dim=90, qk_dim=50, v_dim=70)
    for initial, down, key in (("scaled", 0.02, 0.02), ("fan_in", 150**-0.5, 90**-0.5)):
        model = Transformer(TransformerConfig(vocab=VOCAB, block=block, n_decoder_layer=2, initial=initial))
        layer = model.decoder.blocks[1].attention
        assert layer.down.weight.std().item() == pytest.approx(down, rel=0.05)
        assert layer.key.weight.std().item() == pytest.approx(key, rel=0.05)
        assert (layer.down_norm.weight == 1).all()


def test_an_untrained_delta_model_keeps_its_memory():
    model = model_of("delta")
    for block in model.decoder.blocks:
        assert (block.attention.keep.bias == KEEP_BIAS).all()
        assert (block.attention.write.bias == 0).all()


@torch.no_grad()
def test_latent_decoding_is_traced_in_the_form_of_the_whole_pass():
    """Weights of every step are rows of the whole pass's, and a head's output can be switched off."""
    model, tokens = model_of("latent rotary"), torch.randint(VOCAB, (1, 7))
    whole, rows = regard.trace(model, tokens), []
    cache = model.new_cache()
    model(tokens[:, :6], cache=cache)

    def record(name, q, k, v, out, lse, rule):
        assert q.shape[-1] == 5 + 4
        assert v.shape[1:] == (N_HEAD, 7, 7)
        rows.append((q @ k.mT * 9**-0.5).softmax(-1))

    model(tokens[:, 6:], cache=cache, record=record)
    for layer, row in enumerate(rows):
        for head in range(N_HEAD):
            torch.testing.assert_close(row[0, head, 0], whole.weights(layer, head)[6].double())
    with regard.intervene(model) as run:
        run.gate(layer=0, head=1, by=0.0)
        off = model(tokens).logits

    def without(name, q, k, v, out, lse, rule):
        return out * torch.tensor([1, 0, 1])[:, None, None] if "decoder.0" in name else None

    torch.testing.assert_close(off, model(tokens, record=without).logits)


def test_the_delta_rule_says_that_it_is_not_traced():
    model, tokens = model_of("delta"), torch.randint(VOCAB, (1, 7))
    with pytest.raises(UnsupportedError, match="forms no weights"):
        regard.trace(model, tokens)
    with pytest.raises(UnsupportedError, match="forms no weights"), regard.intervene(model):
        model(tokens)
    with pytest.raises(UnsupportedError, match="forms no weights"):
        model(tokens, record=lambda *given: None)


@pytest.mark.parametrize("kind", ["latent rotary", "delta"])
def test_generation_is_greedy_over_whole_passes(kind):
    model, tokens = model_of(kind), torch.tensor([[3, 1, 4]])
    written = tokens
    for _ in range(5):
        written = torch.cat([written, model(written).logits[:, -1].argmax(-1, keepdim=True)], 1)
    generated = generate(model, tokens, max_new=5, stop=())
    assert list(generated.tokens[0])[-5:] == written[0, 3:].tolist()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"latent_dim": 5}, "needs both of its sizes"),
        ({"latent_rotary_dim": 4}, "needs both of its sizes"),
        ({"latent_dim": 5, "latent_rotary_dim": 3}, "must be even"),
        ({"latent_dim": 0, "latent_rotary_dim": 2}, "latent_dim"),
        ({"latent_dim": 5, "latent_rotary_dim": 2, "n_kv_head": 1}, "latent attention cannot have n_kv_head"),
        ({"latent_dim": 5, "latent_rotary_dim": 2, "delta": True}, "delta rule cannot have latent_dim"),
        ({"latent_dim": 5, "latent_rotary_dim": 2, "softcap": 2.0, "sinks": True}, "have softcap, sinks"),
        ({"latent_dim": 5, "latent_rotary_dim": 2, "out_bias": False}, "cannot have out_bias"),
        ({"delta": True, "window": 3}, "the delta rule cannot have window"),
        ({"delta": True, "feature_map": "elu1"}, "the delta rule cannot have feature_map"),
    ],
)
def test_fields_that_exclude_each_other_are_refused(fields, message):
    with pytest.raises(ArgumentError, match=message):
        BlockConfig(**SIZES, **fields)


def test_models_that_cannot_be_are_refused():
    both = {"vocab": VOCAB, "n_encoder_layer": 1, "n_decoder_layer": 1}
    for block in (LATENT, DELTA):
        with pytest.raises(ArgumentError, match="one stack"):
            TransformerConfig(**both, block=block)
        with pytest.raises(ArgumentError, match="without cross-attention"):
            Block(block, causal=True, cross=True)
    for positions in ("rotary", "relative"):
        with pytest.raises(ArgumentError, match="delta rule is of decoders"):
            TransformerConfig(vocab=VOCAB, n_decoder_layer=1, block=DELTA, positions=positions)
    with pytest.raises(ArgumentError, match="delta rule is of decoders"):
        TransformerConfig(vocab=VOCAB, n_encoder_layer=1, block=DELTA)
    with pytest.raises(ArgumentError, match="causal blocks"):
        Block(DELTA)
    turn = Rotary(4)(torch.arange(3)[None])
    with pytest.raises(UnsupportedError, match="no rotary"):
        block_of(DELTA)(torch.randn(1, 3, MODEL_DIM).double(), rotary=turn)


@torch.no_grad()
def test_states_are_not_taken_for_each_others():
    cache, x = LayerCache(), torch.randn(1, 3, MODEL_DIM).double()
    delta = block_of(DELTA)
    delta(x, cache=cache)
    with pytest.raises(UnsupportedError, match="delta rule"):
        MultiHeadAttention(MODEL_DIM, N_HEAD, feature_map="elu1", causal=True).double()(x, cache=cache)
    with pytest.raises(UnsupportedError, match="nothing can be taken out"):
        cache.crop(1)
    linear = LayerCache()
    MultiHeadAttention(MODEL_DIM, N_HEAD, feature_map="elu1", causal=True).double()(x, cache=linear)
    with pytest.raises(UnsupportedError, match="linear attention"):
        delta(x, cache=linear)


def test_a_latent_encoder_sees_the_future():
    """Without causality, an early output depends on a late token."""
    model = Transformer(
        TransformerConfig(vocab=VOCAB, block=LATENT, n_encoder_layer=1, lm_head="none")
    ).eval()
    tokens = torch.tensor([[3, 1, 4, 1, 5]])
    other = tokens.clone()
    other[0, 4] = 7
    assert (model(tokens).hidden[0, 0] - model(other).hidden[0, 0]).abs().max() > 0


@pytest.mark.parametrize("kind", [{"latent_dim": 8, "latent_rotary_dim": 4}, {"delta": True}])
def test_no_published_format_takes_them(kind):
    """A GPT-2 is written as one; with another attention it is refused, not written as if it were."""
    config = load("gpt2", random=True).model.config
    assert published_config(config)
    with pytest.raises(UnsupportedError):
        published_config(replace(config, block=replace(config.block, **kind)))
