"""A cache changes what decoding costs, never what it computes."""

import pytest
import torch
from torch import Tensor

from regard.attention.visibility import Visibility
from regard.layers.attention import MultiHeadAttention
from regard.layers.block import Block, BlockConfig
from regard.layers.cache import KVCache, LayerCache
from regard.layers.positions import RelativeBias, Rotary

BATCH, N_HEAD, LENGTH, MODEL_DIM, QK_DIM = 2, 6, 13, 11, 4
EXACT = {"atol": 1e-12, "rtol": 1e-10}  # float64: a few hundred roundings of 1e-16

heads = pytest.mark.parametrize("n_kv_head", [6, 3, 1], ids=["multi-head", "grouped", "multi-query"])
windows = pytest.mark.parametrize("window", [None, 3])
turns = pytest.mark.parametrize("turned", [False, True], ids=["no positions", "rotary"])


class Decoder:
    """A causal layer with its positions, fed in pieces."""

    def __init__(self, n_kv_head=N_HEAD, window=None, turned=False, block=4):
        self.layer = MultiHeadAttention(
            MODEL_DIM, N_HEAD, n_kv_head=n_kv_head, qk_dim=QK_DIM, v_dim=5, causal=True, window=window
        ).double()
        self.rotary = Rotary(QK_DIM) if turned else None
        self.cache = LayerCache(block)

    def _turn(self, first: int, last: int):
        return None if self.rotary is None else self.rotary(torch.arange(first, last)[None])

    def whole(self, x: Tensor) -> Tensor:
        return self.layer(x, rotary=self._turn(0, x.shape[1]))

    @torch.no_grad()
    def feed(self, x: Tensor, **options) -> Tensor:
        first = self.cache.length
        turn = self._turn(first, first + x.shape[1])
        return self.layer(x, cache=self.cache, rotary=turn, **options)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


@heads
@windows
@turns
def test_prefill_and_single_steps_equal_the_full_causal_pass_at_every_position(n_kv_head, window, turned):
    """Five positions at once, then one by one, beyond two growths of the buffers."""
    decoder = Decoder(n_kv_head, window, turned)
    x = random(BATCH, LENGTH, MODEL_DIM)
    wanted = decoder.whole(x)
    torch.testing.assert_close(decoder.feed(x[:, :5]), wanted[:, :5], **EXACT)
    for i in range(5, LENGTH):
        torch.testing.assert_close(decoder.feed(x[:, i : i + 1]), wanted[:, i : i + 1], **EXACT)
        assert decoder.cache.length == i + 1


@pytest.mark.parametrize("sizes", [(3, 4, 6), (1, 11, 1), (13,), (2, 0, 11)])
@windows
def test_pieces_of_any_size_give_the_same(sizes, window):
    """Several positions may come at once at any time; none is allowed too."""
    decoder = Decoder(3, window, turned=True)
    x = random(BATCH, LENGTH, MODEL_DIM)
    got = torch.cat([decoder.feed(piece) for piece in x.split(sizes, dim=1)], dim=1)
    torch.testing.assert_close(got, decoder.whole(x), **EXACT)


@windows
def test_cropping_and_going_on_equals_never_having_seen_the_cropped(window):
    """As after a rejected continuation."""
    decoder = Decoder(3, window, turned=True)
    x, rejected = random(BATCH, LENGTH, MODEL_DIM), random(BATCH, 6, MODEL_DIM)
    decoder.feed(x[:, :5])
    decoder.feed(rejected)
    decoder.cache.crop(5)
    assert decoder.cache.length == 5
    torch.testing.assert_close(decoder.feed(x[:, 5:]), decoder.whole(x)[:, 5:], **EXACT)


def test_reordering_gives_each_sequence_the_past_it_asks_for():
    """Sequences may be dropped, come twice and change places, as in beam search."""
    decoder = Decoder(3, turned=True)
    x, more = random(3, 5, MODEL_DIM), random(4, 2, MODEL_DIM)
    decoder.feed(x)
    order = torch.tensor([2, 0, 2, 1])
    decoder.cache.reorder(order)
    wanted = decoder.whole(torch.cat([x[order], more], dim=1))[:, 5:]
    torch.testing.assert_close(decoder.feed(more), wanted, **EXACT)


def test_padding_stays_hidden_while_decoding():
    """`keys` covers cached and new positions: what is padding in the prompt is so for every step."""
    decoder = Decoder()
    x = random(BATCH, LENGTH, MODEL_DIM)
    keys = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    keys[1, :3] = False
    wanted = decoder.layer(x, visible=Visibility(key_mask=keys))
    decoder.feed(x[:, :5], visible=Visibility(key_mask=keys[:, :5]))
    for i in range(5, LENGTH):
        got = decoder.feed(x[:, i : i + 1], visible=Visibility(key_mask=keys[:, : i + 1]))
        torch.testing.assert_close(got, wanted[:, i : i + 1], **EXACT)


def test_relative_positions_follow_the_cache():
    """The bias of a step is that of its row in the whole table."""
    decoder, relative = Decoder(3), RelativeBias(N_HEAD, 8, 7, bidirectional=False).double()
    x = random(BATCH, LENGTH, MODEL_DIM)
    torch.nn.init.normal_(relative.weight)
    wanted = decoder.layer(x, bias=relative(LENGTH, LENGTH))
    decoder.feed(x[:, :5], bias=relative(5, 5))
    for i in range(5, LENGTH):
        got = decoder.feed(x[:, i : i + 1], bias=relative(1, i + 1, start=i))
        torch.testing.assert_close(got, wanted[:, i : i + 1], **EXACT)


def test_weights_recorded_with_a_cache_are_the_rows_of_the_full_pass():
    """return_weights and record see the cached keys."""
    decoder = Decoder(3, window=4, turned=True)
    x = random(BATCH, LENGTH, MODEL_DIM)
    turn = decoder.rotary(torch.arange(LENGTH)[None])
    _, wanted = decoder.layer(x, rotary=turn, return_weights=True)
    decoder.feed(x[:, :7])
    seen = []
    _, weights = decoder.feed(x[:, 7:], return_weights=True, record=lambda *given: seen.append(given))
    torch.testing.assert_close(weights, wanted[:, :, 7:], **EXACT)
    ((_, q, k, _, _, lse, rule),) = seen
    torch.testing.assert_close((rule.scores(q, k) - lse[..., None]).exp(), wanted[:, :, 7:], **EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_multi_query_cache_is_exactly_n_head_times_smaller(dtype):
    """Counted in bytes held and in bytes reserved."""
    sizes = {}
    for n_kv_head in (N_HEAD, 1):
        layer = MultiHeadAttention(MODEL_DIM, N_HEAD, n_kv_head=n_kv_head, qk_dim=QK_DIM, v_dim=5).to(dtype)
        cache = LayerCache()
        with torch.no_grad():
            layer(torch.randn(BATCH, LENGTH, MODEL_DIM, dtype=dtype), cache=cache)
        sizes[n_kv_head] = cache.bytes, cache.bytes_reserved
    assert sizes[1][0] == BATCH * LENGTH * (QK_DIM + 5) * dtype.itemsize
    assert sizes[N_HEAD] == (N_HEAD * sizes[1][0], N_HEAD * sizes[1][1])


def test_buffers_grow_in_blocks_and_seldom():
    """Room is a multiple of the block, and 2000 single appends reallocate at most a dozen times."""
    cache = LayerCache(block=8)
    room = []
    for step in range(2000):
        k, v, start = cache.append(
            torch.full((1, 2, 1, 3), float(step)), torch.full((1, 2, 1, 5), -float(step))
        )
        assert start == step
        room.append(cache.bytes_reserved // (4 * 2 * (3 + 5)))
    assert all(positions % 8 == 0 for positions in room)
    assert room[:9] == [8] * 8 + [16]
    assert len(set(room)) <= 12
    assert torch.equal(k[0, 1, :, 2], torch.arange(2000.0))
    assert torch.equal(v[0, 0, :, 4], -torch.arange(2000.0))
    assert cache.bytes == 2000 * 4 * 2 * (3 + 5) <= cache.bytes_reserved


def test_what_append_returned_never_changes():
    """A trace may hold the keys of a step while the cache is cropped, reordered and fed with others."""
    cache = LayerCache(block=16)
    k, v, _ = cache.append(torch.ones(2, 3, 5, 7), torch.ones(2, 3, 5, 11))
    cache.append(torch.full((2, 3, 2, 7), 2.0), torch.full((2, 3, 2, 11), 2.0))
    cache.crop(3)
    held_k, held_v = cache.k, cache.v
    new_k, _, start = cache.append(torch.full((2, 3, 2, 7), 3.0), torch.full((2, 3, 2, 11), 3.0))
    cache.reorder(torch.tensor([1, 0]))
    reordered = cache.k
    cache.crop(4)
    cache.append(torch.full((2, 3, 2, 7), 4.0), torch.full((2, 3, 2, 11), 4.0))
    assert start == 3
    for tensor in (k, v, held_k, held_v):
        assert torch.equal(tensor, torch.ones_like(tensor))
    assert new_k[0, 0, :, 0].tolist() == [1, 1, 1, 3, 3]
    assert reordered[0, 0, :, 0].tolist() == [1, 1, 1, 3, 3]
    assert cache.k[0, 0, :, 0].tolist() == [1, 1, 1, 3, 4, 4]


def test_a_cache_filled_in_inference_mode_can_be_used_outside_it():
    """The prompt may be read under inference_mode and the steps under no_grad."""
    decoder = Decoder()
    x = random(BATCH, LENGTH, MODEL_DIM)
    with torch.inference_mode():
        decoder.feed(x[:, :5])
    wanted = decoder.whole(x)
    for i in range(5, LENGTH):  # the first of them still fits into the buffer
        torch.testing.assert_close(decoder.feed(x[:, i : i + 1]), wanted[:, i : i + 1], **EXACT)


def test_a_gradient_through_two_appends_is_refused_and_never_wrong():
    """The first step's keys are needed by its backward pass, and the buffer has changed since."""
    layer = MultiHeadAttention(MODEL_DIM, N_HEAD, qk_dim=QK_DIM, v_dim=QK_DIM, causal=True)
    cache = LayerCache()
    x = torch.randn(BATCH, LENGTH, MODEL_DIM)
    out = layer(x[:, :5], cache=cache).sum() + layer(x[:, 5:], cache=cache).sum()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_a_cache_of_cross_attention_is_filled_once():
    """The memory is projected in the first step only, and every step equals the pass without a cache."""
    layer = MultiHeadAttention(MODEL_DIM, N_HEAD, n_kv_head=2, qk_dim=QK_DIM, v_dim=5, memory_dim=7).double()
    x, memory = random(BATCH, LENGTH, MODEL_DIM), random(BATCH, 3, 7)
    wanted = layer(x, memory)
    projected = []
    layer.key.register_forward_hook(lambda *_: projected.append("key"))
    layer.value.register_forward_hook(lambda *_: projected.append("value"))
    cache = LayerCache(block=1)
    with torch.no_grad():
        for i in range(LENGTH):
            got = layer(x[:, i : i + 1], memory, cache=cache)
            torch.testing.assert_close(got, wanted[:, i : i + 1], **EXACT)
    assert projected == ["key", "value"]
    assert cache.length == 3


def test_a_decoder_block_with_its_caches_equals_the_full_pass():
    """Self- and cross-attention together, through KVCache, cropped and reordered on the way."""
    config = BlockConfig(12, 3, 19, n_kv_head=1, norm="rms", activation="silu", gated=True)
    block, rotary = Block(config, causal=True, cross=True).double(), Rotary(4)
    x, memory = random(BATCH, LENGTH, 12), random(BATCH, 5, 12)
    cache = KVCache(n_layer=1, block=4)

    @torch.no_grad()
    def feed(piece: Tensor, memory: Tensor) -> Tensor:
        turn = rotary(torch.arange(cache.length, cache.length + piece.shape[1])[None])
        return block(piece, memory, rotary=turn, cache=cache[0], cross_cache=cache.cross[0])

    wanted = block(x, memory, rotary=rotary(torch.arange(LENGTH)[None]))
    torch.testing.assert_close(feed(x[:, :7], memory), wanted[:, :7], **EXACT)
    feed(random(BATCH, 3, 12), memory)
    cache.crop(7)
    assert (len(cache), cache.length, cache.cross[0].length) == (1, 7, 5)  # the memory stays
    order = torch.tensor([1, 0])
    cache.reorder(order)
    for i in range(7, LENGTH):
        torch.testing.assert_close(
            feed(x[order, i : i + 1], memory[order]), wanted[order, i : i + 1], **EXACT
        )
    assert cache.bytes == BATCH * (LENGTH + 5) * 2 * 4 * 8  # one head of keys and one of values, float64
    assert cache.bytes_reserved >= cache.bytes


def test_an_empty_cache_holds_nothing():
    """No bytes, no keys; cropping to 0 and reordering are allowed."""
    cache = KVCache(n_layer=2)
    cache.crop(0)
    cache.reorder(torch.tensor([0, 0]))
    assert (cache.length, cache.bytes, cache.bytes_reserved, cache[1].k, cache[1].v) == (0, 0, 0, None, None)
