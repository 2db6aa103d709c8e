"""The packed decoder computes what the readable forward does, and steps aside for what it does not know."""

import dataclasses
import gc
import weakref

import pytest
import torch

from regard.errors import ArgumentError
from regard.files.loading import load
from regard.layers.block import BlockConfig
from regard.models import fast, packing
from regard.models.families import initialise
from regard.models.transformer import Transformer, TransformerConfig

VOCAB, BATCH, PROMPT, STEPS = 37, 3, 5, 7
# float32, a few layers: sums of some dozen products, in another order than the readable path.
CLOSE = {"atol": 2e-5, "rtol": 2e-5}

GPT2 = BlockConfig(model_dim=30, n_head=5, ff_dim=41, activation="gelu_tanh")
LLAMA = BlockConfig(
    model_dim=42,
    n_head=6,
    n_kv_head=3,
    qk_dim=10,
    v_dim=10,
    ff_dim=53,
    norm="rms",
    activation="silu",
    gated=True,
    attention_bias=False,
    ff_bias=False,
)
T5 = dataclasses.replace(
    LLAMA,
    model_dim=20,
    n_head=5,
    n_kv_head=None,
    qk_dim=6,
    v_dim=6,
    scale=1.0,
    activation="relu",
    gated=False,
)
CONFIGS = {
    "gpt2": TransformerConfig(VOCAB, GPT2, n_decoder_layer=2, n_position=23),
    "gpt2, in whole parts": TransformerConfig(
        VOCAB, dataclasses.replace(GPT2, model_dim=32, n_head=4, ff_dim=48), n_decoder_layer=2, n_position=23
    ),
    "llama": TransformerConfig(
        VOCAB, LLAMA, n_decoder_layer=3, positions="rotary", n_position=None, tied=False
    ),
    "multi-query": TransformerConfig(
        VOCAB,
        dataclasses.replace(LLAMA, n_kv_head=1, attention_bias=True, out_bias=False),
        n_decoder_layer=2,
        positions="rotary",
        n_position=None,
    ),
    "norm after": TransformerConfig(
        VOCAB,
        dataclasses.replace(GPT2, norm_first=False, activation="relu"),
        n_decoder_layer=2,
        positions="sinusoidal",
        n_position=29,
        embed_norm=True,
        final_norm=False,
    ),
    "qwen3": TransformerConfig(
        VOCAB,
        dataclasses.replace(LLAMA, qk_norm=True),
        n_decoder_layer=2,
        positions="rotary",
        n_position=None,
    ),
    "gemma3": TransformerConfig(
        VOCAB,
        dataclasses.replace(LLAMA, qk_norm=True, norm_after=True, window=3, activation="gelu_tanh"),
        n_decoder_layer=3,
        positions="rotary",
        n_position=None,
        local=(True, False, True),
        local_rotary_base=31.0,
        embed_scale=42**0.5,
    ),
    "neox": TransformerConfig(
        VOCAB,
        dataclasses.replace(GPT2, parallel=True, activation="gelu"),
        n_decoder_layer=2,
        positions="rotary",
        rotary_dim=4,
        n_position=None,
        tied=False,
    ),
    "no positions where all is seen": TransformerConfig(
        VOCAB,
        dataclasses.replace(LLAMA, window=6),
        n_decoder_layer=2,
        positions="rotary",
        n_position=None,
        local=(True, False),
        full_positions=False,
    ),
    "t5": TransformerConfig(
        VOCAB,
        T5,
        n_encoder_layer=1,
        n_decoder_layer=2,
        positions="relative",
        n_position=None,
        n_bucket=8,
        max_distance=11,
        lm_head_scale=20**-0.5,
    ),
}


def build(name, **changes):
    """A model of that kind with random weights, norms and biases too, so that none can be left out."""
    model = initialise(Transformer(dataclasses.replace(CONFIGS[name], **changes)), seed=0).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


SPLITTING_WINS = packing.splitting_wins.__wrapped__  # as it is without the fixture below, and nothing kept


@pytest.fixture(autouse=True)
def _packed_at_once(monkeypatch):
    """Small matrices too, and in parts, whatever is faster here."""
    monkeypatch.setattr(packing, "_SMALL", 0)
    monkeypatch.setattr(packing, "splitting_wins", lambda *_: True)


def tokens(*shape):
    return torch.randint(VOCAB, shape)


def padded():
    """Which of the prompt's tokens are real: the sequences miss 0, 2 and 3 on the left."""
    return torch.arange(PROMPT) >= torch.tensor([0, 2, 3])[:, None]


def recomputed(model, prompt, key_mask, fed):
    """The scores after all that was fed, by one forward pass over the whole: no cache, no packed weights."""
    with torch.no_grad():
        if model.encoder is not None:
            return model(prompt, fed, key_mask=key_mask).logits[:, -1]
        whole = torch.cat([prompt, fed], dim=1)
        if key_mask is not None:
            key_mask = torch.cat([key_mask, torch.ones_like(fed, dtype=torch.bool)], dim=1)
        return model(whole, key_mask=key_mask).logits[:, -1]


def begin(model, prompt, key_mask=None):
    """A running decode, and what the decoder has been fed beyond the prompt."""
    start = 1 if model.encoder is not None else None
    _, decoding = model.begin(prompt, key_mask, start_token=start)
    return decoding, prompt.new_full((len(prompt), 0 if start is None else 1), 1)


@pytest.mark.parametrize("padding", [False, True], ids=["no padding", "left padding"])
@pytest.mark.parametrize("name", CONFIGS)
def test_every_step_equals_the_whole_computed_again(name, padding):
    """Token by token, the scores are those of one readable forward pass over everything so far."""
    model, prompt = build(name), tokens(BATCH, PROMPT)
    key_mask = padded() if padding else None
    decoding, fed = begin(model, prompt, key_mask)
    for _ in range(STEPS):
        new = tokens(BATCH)
        fed = torch.cat([fed, new[:, None]], dim=1)
        scores = decoding.next(new)
        torch.testing.assert_close(scores, recomputed(model, prompt, key_mask, fed), **CLOSE)
    assert decoding.engine is not None  # and it was the packed weights that did it


@pytest.mark.parametrize("name", CONFIGS)
def test_reordered_sequences_go_on_as_their_origins(name):
    """As beam search does: sequence 2 twice, then sequence 0; each goes on from its own past."""
    model, prompt = build(name), tokens(BATCH, PROMPT)
    decoding, fed = begin(model, prompt, padded())
    new = tokens(BATCH)
    decoding.next(new)
    order = torch.tensor([2, 2, 0, 1])
    decoding.reorder(order)
    fed = torch.cat([fed, new[:, None]], dim=1)[order]
    for _ in range(2):
        new = tokens(len(order))
        fed = torch.cat([fed, new[:, None]], dim=1)
        wanted = recomputed(model, prompt[order], padded()[order], fed)
        torch.testing.assert_close(decoding.next(new), wanted, **CLOSE)
    assert decoding.engine is not None


@pytest.mark.parametrize("name", CONFIGS)
def test_after_a_rollback_the_past_is_what_was_kept(name):
    """Two tokens are taken back and others fed: the scores know nothing of the first two."""
    model, prompt = build(name), tokens(BATCH, PROMPT)
    decoding, fed = begin(model, prompt)
    decoding.next(tokens(BATCH))
    decoding.next(tokens(BATCH))
    decoding.cache.crop(decoding.cache.length - 2)
    for _ in range(2):
        new = tokens(BATCH)
        fed = torch.cat([fed, new[:, None]], dim=1)
        torch.testing.assert_close(decoding.next(new), recomputed(model, prompt, None, fed), **CLOSE)


@pytest.mark.parametrize("name", CONFIGS)
def test_one_sequence_that_branches_decodes_as_forward_does(name):
    """Alone, and after branching into three, as beams do."""
    model, prompt = build(name), tokens(1, PROMPT)
    decoding, fed = begin(model, prompt)
    for n_sequence in (1, 1, 3, 3):
        order = (
            torch.zeros(n_sequence, dtype=torch.long) if len(fed) < n_sequence else torch.arange(n_sequence)
        )
        decoding.reorder(order)
        prompt, new = prompt[order], tokens(n_sequence)
        fed = torch.cat([fed[order], new[:, None]], dim=1)
        torch.testing.assert_close(decoding.next(new), recomputed(model, prompt, None, fed), **CLOSE)
        assert decoding.engine is not None


def test_a_cache_that_grows_keeps_its_past():
    """More steps than a block of the cache holds, so that its buffers are copied to longer ones."""
    model, prompt = build("llama"), tokens(2, 3)
    decoding, _ = begin(model, prompt)
    assert decoding.cache[0].block < 263
    new = tokens(2, 263)
    for index in range(263):
        scores = decoding.next(new[:, index])
    torch.testing.assert_close(scores, recomputed(model, prompt, None, new), **CLOSE)


def test_what_a_step_leaves_behind_may_be_used_anywhere():
    """Scores and cache are ordinary tensors: a gradient may be taken of what is computed from them."""
    model, prompt = build("llama"), tokens(2, 3)
    decoding, _ = begin(model, prompt)
    for token in tokens(300, 2):  # more than a block, so that the buffers grow on the way
        scores = decoding.next(token)
    held = [scores, *(each for layer in decoding.cache.layers for each in (layer.k, layer.v))]
    assert not any(tensor.is_inference() for tensor in held)
    weight = torch.ones((), requires_grad=True)
    sum((weight * tensor).sum() for tensor in held).backward()
    assert weight.grad is not None


def test_what_a_step_returned_stays_as_it_was():
    """The scores of one step are not a buffer that the next one writes into."""
    decoding, _ = begin(build("gpt2"), tokens(BATCH, PROMPT))
    scores = decoding.next(tokens(BATCH))
    copy = scores.clone()
    decoding.next(tokens(BATCH))
    assert torch.equal(scores, copy)


def test_changed_weights_are_packed_anew():
    """A step of an optimiser is noticed at the next decode; unchanged weights are packed once."""
    model, prompt = build("gpt2"), tokens(BATCH, PROMPT)
    first = fast.engine(model)
    assert fast.engine(model) is first
    with torch.no_grad():
        model.decoder.blocks[1].ff.down.weight.mul_(1.7)
    assert fast.engine(model) is not first
    decoding, _ = begin(model, prompt)
    new = tokens(BATCH)
    torch.testing.assert_close(decoding.next(new), recomputed(model, prompt, None, new[:, None]), **CLOSE)


def test_packed_weights_go_with_their_model():
    """Nothing keeps a model, or its packed weights, alive."""
    model = build("gpt2")
    packed = weakref.ref(fast.engine(model))
    del model
    gc.collect()
    assert packed() is None


def in_training(model):
    model.train()


def in_float64(model):
    model.double()


def with_a_hook(model):
    model.decoder.blocks[0].ff.register_forward_hook(lambda *_: None)


def with_another_layer(model):
    class Scaled(torch.nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    old = model.decoder.blocks[0].ff.up
    model.decoder.blocks[0].ff.up = Scaled(old.in_features, old.out_features)


def with_a_patched_forward(model):
    ff = model.decoder.blocks[1].ff
    original = ff.forward
    ff.forward = lambda x: original(x) * 0.5


@pytest.mark.parametrize(
    "change", [in_training, in_float64, with_a_hook, with_another_layer, with_a_patched_forward]
)
def test_anything_unusual_takes_the_readable_path(change):
    """The engine says why it steps aside, and the decode gives what forward gives, the change included."""
    model, prompt = build("gpt2"), tokens(BATCH, PROMPT)
    assert fast.why_not(model) is None
    change(model)
    assert isinstance(fast.why_not(model), str)
    assert fast.engine(model) is None
    decoding, _ = begin(model, prompt)
    new = tokens(BATCH)
    torch.testing.assert_close(decoding.next(new), recomputed(model, prompt, None, new[:, None]), **CLOSE)
    assert decoding.engine is None


def test_a_pruned_model_takes_the_readable_path():
    """Layers with different numbers of heads decode as forward has them."""
    model, prompt = build("gpt2", kept_heads=((0, 1, 2, 3, 4), (1, 3))), tokens(BATCH, PROMPT)
    assert "pruning" in fast.why_not(model)
    decoding, _ = begin(model, prompt)
    new = tokens(BATCH)
    torch.testing.assert_close(decoding.next(new), recomputed(model, prompt, None, new[:, None]), **CLOSE)


@pytest.mark.parametrize("change", [{"v_dim": 7}, {"alibi": True}], ids=["v_dim", "alibi"])
def test_unusual_blocks_take_the_readable_path(change):
    """Values of another size than keys, or scores that fall with distance, decode as forward has them."""
    block = dataclasses.replace(GPT2, **change)
    model, prompt = build("gpt2", block=block), tokens(BATCH, PROMPT)
    assert fast.why_not(model) is not None
    decoding, _ = begin(model, prompt)
    new = tokens(BATCH)
    torch.testing.assert_close(decoding.next(new), recomputed(model, prompt, None, new[:, None]), **CLOSE)


def test_a_recorded_or_changed_decode_runs_the_readable_path():
    """Every step is recorded, and what a hook puts in a layer's place changes the scores."""
    model, prompt, new = build("gpt2"), tokens(BATCH, PROMPT), tokens(BATCH)
    names = []
    _, decoding = model.begin(prompt, record=lambda name, *_: names.append(name))
    plain = decoding.next(new)
    assert names == model.attention_names * 2
    for block in model.decoder.blocks:
        block.attention.register_forward_hook(lambda module, args, out: torch.zeros_like(out))
    _, changed = model.begin(prompt)
    assert not torch.allclose(changed.next(new), plain, **CLOSE)


def test_wrong_tokens_are_refused_as_ever_and_leave_the_cache_alone():
    """A token outside the vocabulary, or beyond the last position, gets our error from the readable path."""
    model = build("gpt2")
    decoding, _ = begin(model, tokens(1, PROMPT))
    for wrong in (VOCAB, -1):
        with pytest.raises(ArgumentError, match="vocabulary"):
            decoding.next(torch.tensor([wrong]))
    assert decoding.cache.length == PROMPT
    for _ in range(23 - PROMPT):
        decoding.next(tokens(1))
    with pytest.raises(ArgumentError, match="limit of 23"):
        decoding.next(tokens(1))


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_packed_product_is_the_product(bias, split, monkeypatch):
    """x W^T + b, to rounding, for one number of rows after another, in parts or not."""
    monkeypatch.setattr(packing, "splitting_wins", lambda *_: split)
    for n_out in (16, 53, 7):  # whole parts, some rows left, fewer than parts
        weight, shift = torch.randn(n_out, 101), torch.randn(n_out) if bias else None
        product = packing.pack(weight, shift)
        for n_row in (1, 7, 2, 4, 5, 1):
            x = torch.randn(n_row, 101)
            exact = (x.double() @ weight.double().T + (0 if shift is None else shift)).float()
            torch.testing.assert_close(product(x), exact, **CLOSE)
            assert product(x).is_contiguous()  # the attention kernel reads anything else wrongly


@pytest.mark.parametrize("split_takes", [0.5, 2.0])
def test_the_faster_product_is_taken(monkeypatch, split_takes):
    """By a clock of the test's own: the plain one takes a second at best, and first calls do not count."""
    clock = [0.0]

    def taking(seconds):
        calls = iter([0.001 / seconds, seconds, seconds + 5, seconds + 9])  # the least of the last three
        return lambda x, matrix: clock.__setitem__(0, clock[0] + next(calls))

    monkeypatch.setattr(packing.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(packing.F, "linear", taking(1.0))
    monkeypatch.setattr(packing, "split_product", taking(split_takes))
    assert SPLITTING_WINS(1, 1) is (split_takes < 1)


def test_asked_for_float16_rounds_the_weights_and_nothing_else():
    """The product is that with W rounded; entries beyond float16 leave their matrix as it is."""
    weight, x = torch.randn(17, 101), torch.randn(3, 101)
    rounded = packing.pack(weight, half=True)(x)
    torch.testing.assert_close(rounded, x @ weight.half().float().T, **CLOSE)
    assert not torch.allclose(rounded, x @ weight.T, **CLOSE)
    large = weight.clone()
    large[2, 3] = 1e5
    given = large.clone()
    torch.testing.assert_close(packing.pack(large, half=True)(x), x @ given.T, atol=0.1, rtol=2e-5)
    assert torch.equal(large, given)


@pytest.mark.parametrize("name", CONFIGS)
def test_float16_decoding_is_near_float32(name):
    """Scores differ by a thousandth of their spread, and not by nothing: the rounded weights did it."""
    model, prompt = build(name), tokens(BATCH, PROMPT)
    model.packed = "float16"
    decoding, fed = begin(model, prompt, padded())
    for _ in range(3):
        new = tokens(BATCH)
        fed = torch.cat([fed, new[:, None]], dim=1)
        scores, exact = decoding.next(new), recomputed(model, prompt, padded(), fed)
        spread = (exact - exact.mean()).norm()
        assert 1e-6 * spread < (scores - exact).norm() < 2e-3 * spread
    assert decoding.engine is not None


def test_load_offers_float16_weights_and_its_facts_say_so():
    """The model itself is the same; only what decoding reads differs."""
    plain, rounded = load("smollm2", random=True), load("smollm2", random=True, packed="float16")
    assert (plain.facts.packed, rounded.facts.packed) == ("float32", "float16")
    assert any("float16" in note for note in rounded.facts.notes)
    assert rounded.model.packed == "float16"
    assert torch.equal(plain.model.token.weight, rounded.model.token.weight)


@pytest.mark.parametrize(
    "wrong", [{"packed": "int4"}, {"packed": "float16", "dtype": torch.bfloat16}], ids=["int4", "bfloat16"]
)
def test_load_refuses_what_it_cannot_pack(wrong):
    """A clear error, before any file is read."""
    with pytest.raises(ArgumentError, match="float16"):
        load("gpt2", random=True, **wrong)
