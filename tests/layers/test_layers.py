"""Layers against slow plain loops, in float64 unless the test is about another dtype."""

import gc
import math
import pickle
import weakref
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from regard.attention.scores import ScoreRule, SlopeBias
from regard.attention.visibility import Visibility
from regard.errors import UnsupportedError
from regard.layers.attention import AdditiveAttention, MultiHeadAttention, merge_heads, split_heads
from regard.layers.block import ACTIVATIONS, Block, BlockConfig, FeedForward, make_norm

BATCH, N_HEAD, N_QUERY, N_KEY, MODEL_DIM, MEMORY_DIM, QK_DIM = 2, 6, 7, 11, 13, 17, 5
EXACT = {"atol": 1e-12, "rtol": 1e-10}  # float64: a few hundred roundings of 1e-16

heads = pytest.mark.parametrize("n_kv_head", [6, 3, 1], ids=["multi-head", "grouped", "multi-query"])


@dataclass
class Seen:
    """What a layer gave to its record callback."""

    name: str
    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    lse: Tensor
    rule: ScoreRule


def seen_by(layer: nn.Module, *inputs: Tensor, **options) -> list[Seen]:
    seen: list[Seen] = []
    layer(*inputs, record=lambda *given: seen.append(Seen(*given)), **options)
    return seen


def random(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype)


def by_hand(layer: MultiHeadAttention, x: Tensor, memory: Tensor, visible) -> tuple[Tensor, Tensor]:
    """The layer and its weights, one sequence, one head and one query at a time."""
    batch, n_query, _ = x.shape
    n_key = memory.shape[1]
    group = layer.n_head // layer.n_kv_head
    out = x.new_zeros(batch, n_query, layer.model_dim)
    weights = x.new_zeros(batch, layer.n_head, n_query, n_key)
    for b in range(batch):
        for i in range(n_query):
            collected = []
            for h in range(layer.n_head):
                own = slice(h * layer.qk_dim, (h + 1) * layer.qk_dim)
                shared = slice(h // group * layer.qk_dim, (h // group + 1) * layer.qk_dim)
                wide = slice(h // group * layer.v_dim, (h // group + 1) * layer.v_dim)
                q = layer.query(x[b, i])[own]
                top, total, value = [], 0.0, x.new_zeros(layer.v_dim)
                for j in range(n_key):
                    score = (q * layer.key(memory[b, j])[shared]).sum() / layer.qk_dim**0.5
                    top.append(score.exp() if visible(b, i, j) else 0.0 * score)
                    total = total + top[j]
                for j in range(n_key):
                    weights[b, h, i, j] = top[j] / total
                    value = value + top[j] / total * layer.value(memory[b, j])[wide]
                collected.append(value)
            out[b, i] = layer.out(torch.cat(collected))
    return out, weights


@heads
@pytest.mark.parametrize("v_dim", [QK_DIM, 2 * QK_DIM], ids=["v_dim = qk_dim", "v_dim twice as wide"])
@pytest.mark.parametrize("bias", [False, True])
def test_multi_head_attention_equals_a_loop_over_heads_and_queries(n_kv_head, v_dim, bias):
    """Sizes of a head are free of model_dim / n_head; output, weights and all gradients agree."""
    layer = MultiHeadAttention(
        MODEL_DIM, N_HEAD, n_kv_head=n_kv_head, qk_dim=QK_DIM, v_dim=v_dim, memory_dim=MEMORY_DIM, bias=bias
    ).double()
    x, memory = random(BATCH, 3, MODEL_DIM).requires_grad_(), random(BATCH, 5, MEMORY_DIM).requires_grad_()
    lengths = torch.tensor([5, 2])
    wanted, wanted_weights = by_hand(layer, x, memory, lambda b, i, j: j < lengths[b])
    out, weights = layer(x, memory, visible=Visibility(lengths=lengths), return_weights=True)
    torch.testing.assert_close(out, wanted, **EXACT)
    torch.testing.assert_close(weights, wanted_weights, **EXACT)
    direction = random(*out.shape)
    leaves = [x, memory, *layer.parameters()]
    ours = torch.autograd.grad(out, leaves, direction)
    theirs = torch.autograd.grad(wanted, leaves, direction)
    for leaf, wanted_leaf in zip(ours, theirs, strict=True):
        torch.testing.assert_close(leaf, wanted_leaf, **EXACT)


@heads
@pytest.mark.parametrize("window", [None, 2])
def test_causal_self_attention_equals_the_loop(n_kv_head, window):
    """A causal layer looks at itself and before, within its window, and `visible` is added to that."""
    layer = MultiHeadAttention(
        MODEL_DIM, N_HEAD, n_kv_head=n_kv_head, qk_dim=QK_DIM, v_dim=3, causal=True, window=window
    ).double()
    x = random(BATCH, 5, MODEL_DIM)
    keys = torch.tensor([[True] * 5, [True, True, True, False, True]])
    reach = window or 5
    wanted, _ = by_hand(layer, x, x, lambda b, i, j: i - reach < j <= i and keys[b, j])
    torch.testing.assert_close(layer(x, visible=Visibility(key_mask=keys)), wanted, **EXACT)


def test_gradients_of_the_layer_are_those_of_its_differences():
    """gradcheck, with values wider than keys, grouped heads and causality."""
    layer = MultiHeadAttention(5, 4, n_kv_head=2, qk_dim=2, v_dim=3, causal=True, bias=True).double()
    assert torch.autograd.gradcheck(layer, (random(2, 3, 5).requires_grad_(),))


def test_splitting_gives_neighbours_to_the_same_head_and_merging_undoes_it():
    """Worked by hand: 0 1 2 go to head 0, 3 4 5 to head 1."""
    x = torch.arange(12.0).reshape(1, 2, 6)
    assert split_heads(x, 2).tolist() == [[[[0, 1, 2], [6, 7, 8]], [[3, 4, 5], [9, 10, 11]]]]
    assert torch.equal(merge_heads(split_heads(x, 2)), x)


@heads
@pytest.mark.parametrize("training", [False, True])
def test_asking_for_weights_changes_nothing_but_the_answer(n_kv_head, training):
    """The output is the same bit for bit, and the weights are the softmax, before dropout."""
    layer = MultiHeadAttention(
        MODEL_DIM, N_HEAD, n_kv_head=n_kv_head, qk_dim=QK_DIM, v_dim=QK_DIM, causal=True, dropout=0.5
    ).double()
    layer.train(training)
    x = random(BATCH, N_QUERY, MODEL_DIM)
    torch.manual_seed(3)
    alone = layer(x)
    torch.manual_seed(3)
    out, weights = layer(x, return_weights=True)
    assert torch.equal(out, alone)
    q = layer.query(x).unflatten(-1, (N_HEAD, QK_DIM)).transpose(1, 2)
    k = layer.key(x).unflatten(-1, (n_kv_head, QK_DIM)).transpose(1, 2)
    scores = q @ k.repeat_interleave(N_HEAD // n_kv_head, 1).transpose(-1, -2) / QK_DIM**0.5
    future = torch.ones(N_QUERY, N_QUERY, dtype=torch.bool).triu(1)
    wanted = scores.masked_fill(future, -torch.inf).softmax(-1)
    torch.testing.assert_close(weights, wanted, **EXACT)


@heads
def test_weights_are_recovered_from_what_record_is_given(n_kv_head):
    """exp(score - lse), with scores from the q and k given, is the softmax the layer used."""
    layer = MultiHeadAttention(MODEL_DIM, N_HEAD, n_kv_head=n_kv_head, qk_dim=QK_DIM, v_dim=3).double()
    x, memory = random(BATCH, N_QUERY, MODEL_DIM), random(BATCH, N_KEY, MODEL_DIM)
    visible = Visibility(lengths=torch.tensor([11, 4]))
    (seen,) = seen_by(layer, x, memory, visible=visible, name="here")
    out, weights = layer(x, memory, visible=visible, return_weights=True)
    assert seen.name == "here"
    assert seen.k.shape == (BATCH, n_kv_head, N_KEY, QK_DIM)  # keys are never repeated
    scores = seen.q @ seen.k.repeat_interleave(N_HEAD // n_kv_head, 1).transpose(-1, -2) / QK_DIM**0.5
    hidden = torch.arange(N_KEY) >= torch.tensor([11, 4])[:, None, None, None]
    recovered = (scores - seen.lse[..., None]).exp().masked_fill(hidden, 0.0)
    torch.testing.assert_close(recovered, weights, **EXACT)
    torch.testing.assert_close(
        (seen.rule.scores(seen.q, seen.k) - seen.lse[..., None]).exp(), weights, **EXACT
    )
    mixed = weights @ seen.v.repeat_interleave(N_HEAD // n_kv_head, 1)
    torch.testing.assert_close(layer.out(mixed.transpose(1, 2).flatten(2)), out, **EXACT)


@torch.no_grad()
def test_norms_gates_sinks_and_slopes_are_these_formulas():
    """Queries and keys over their root mean square, softmax beside a sink, heads times a sigmoid of x."""
    layer = MultiHeadAttention(
        MODEL_DIM, 3, qk_dim=QK_DIM, v_dim=2, causal=True, softcap=1.3, qk_norm=1e-3, sinks=True, alibi=True,
        output_gate=True,
    ).double()  # fmt: skip
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    x = random(BATCH, N_QUERY, MODEL_DIM)

    def normed(heads, norm):
        return heads / (heads.square().mean(-1, keepdim=True) + 1e-3).sqrt() * norm.weight

    q, k, v = (split_heads(linear(x), 3) for linear in (layer.query, layer.key, layer.value))
    q, k = normed(q, layer.query_norm), normed(k, layer.key_norm)
    scores = 1.3 * torch.tanh(q @ k.mT / QK_DIM**0.5 / 1.3)
    place = torch.arange(N_QUERY)
    back = (place[:, None] - place).double()
    scores = scores - torch.tensor([2.0**-4, 2.0**-8, 2.0**-2])[:, None, None] * back
    scores = scores.masked_fill(back < 0, -math.inf)
    beside = torch.cat([scores, layer.sinks[:, None, None].expand(BATCH, 3, N_QUERY, 1)], -1)
    weights = beside.softmax(-1)[..., :-1]
    wanted = layer.out((weights @ v).transpose(1, 2).flatten(2) * torch.sigmoid(layer.gate(x)))
    out, shown = layer(x, return_weights=True)
    torch.testing.assert_close(shown, weights, **EXACT)
    torch.testing.assert_close(out, wanted, **EXACT)
    with pytest.raises(UnsupportedError, match="a bias of its own"):
        layer(x, bias=SlopeBias(torch.ones(3)))


def state(module: nn.Module) -> list[tuple[str, str, int]]:
    """Every attribute of every submodule, by identity."""
    return [
        (path, key, id(value))
        for path, part in module.named_modules()
        for group in (vars(part), part._parameters, part._buffers)
        for key, value in group.items()
    ]


def test_nothing_is_kept_on_a_module_after_its_forward_pass():
    """No attribute appears or changes, and the queries are freed as soon as nobody else holds them."""
    block = Block(BlockConfig(12, 3, 19), causal=True, cross=True)
    before = state(block)
    x, memory = torch.randn(2, 5, 12), torch.randn(2, 7, 12)
    with torch.no_grad():
        seen = seen_by(block, x, memory)
        block.attention(x, return_weights=True)
    assert [s.name for s in seen] == ["block.self", "block.cross"]
    queries = [weakref.ref(s.q) for s in seen]
    del seen
    gc.collect()
    assert [q() for q in queries] == [None, None]
    assert state(block) == before


def test_garbage_in_hidden_memory_does_not_reach_the_output():
    """NaN and inf in padding change no bit, and a sequence that sees nothing gives the projection's bias."""
    layer = MultiHeadAttention(MODEL_DIM, N_HEAD, qk_dim=QK_DIM, v_dim=QK_DIM, bias=True)
    x, memory = torch.randn(3, N_QUERY, MODEL_DIM), torch.randn(3, N_KEY, MODEL_DIM)
    visible = Visibility(lengths=torch.tensor([11, 5, 0]))
    clean = layer(x, memory, visible=visible)
    memory[1, 5:] = torch.nan
    memory[2] = torch.inf
    assert torch.equal(layer(x, memory, visible=visible), clean)
    torch.testing.assert_close(clean[2], layer.out.bias.expand(N_QUERY, -1))


@pytest.mark.parametrize(("batch", "n_query", "n_key"), [(2, 0, 3), (0, 3, 5), (2, 3, 0)])
def test_nothing_to_attend_to_gives_an_output_of_the_right_size(batch, n_query, n_key):
    """Empty batches, queries and memories run and can be trained through."""
    layer = MultiHeadAttention(12, 4, memory_dim=7)
    out = layer(torch.randn(batch, n_query, 12), torch.randn(batch, n_key, 7))
    assert out.shape == (batch, n_query, 12)
    out.sum().backward()
    assert not out.any()


def test_dropout_removes_whole_weights_in_training_and_nothing_in_evaluation():
    """With equal weights and values of 1, a head's output counts the weights that stayed."""
    n, dropout = 16, 0.25
    layer = MultiHeadAttention(4, 4, qk_dim=2, v_dim=1, dropout=dropout).double()
    with torch.no_grad():
        layer.query.weight.zero_()
        layer.value.weight.fill_(0.25)
        layer.out.weight.copy_(torch.eye(4))
    x = torch.ones(BATCH, n, 4, dtype=torch.float64)
    stayed = layer(x) * n * (1 - dropout)
    torch.testing.assert_close(stayed, stayed.round(), **EXACT)
    assert stayed.unique().numel() > 2
    assert 0.6 < stayed.mean() / n < 0.9  # 128 rows of 16: the mean's standard deviation is below 0.01
    torch.testing.assert_close(layer.eval()(x), torch.ones_like(x), **EXACT)


@pytest.mark.parametrize("n_query", [N_QUERY, 1])
def test_autocast_computes_in_half_what_it_is_given_in_full(n_query):
    """Under autocast both layers run in bfloat16 and stay near float32: eight bits of 1, a few roundings."""
    layer = MultiHeadAttention(12, 3, n_kv_head=1, causal=True)
    additive = AdditiveAttention(12, 12, 5)
    x = torch.randn(BATCH, n_query, 12)
    wanted = layer(x), additive(x, x, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = layer(x), additive(x, x, x)
    for half, full in zip(got, wanted, strict=True):
        assert half.dtype == torch.bfloat16
        torch.testing.assert_close(half.float(), full, atol=0.03, rtol=0.03)


def additive_by_hand(layer: AdditiveAttention, queries, keys, values, visible) -> tuple[Tensor, Tensor]:
    batch, n_query, n_key = queries.shape[0], queries.shape[1], keys.shape[1]
    weights = queries.new_zeros(batch, n_query, n_key)
    for b in range(batch):
        for i in range(n_query):
            terms = [
                (layer.score * torch.tanh(layer.query(queries[b, i]) + layer.key(keys[b, j]))).sum().exp()
                if visible(b, i, j)
                else torch.tensor(0.0, dtype=torch.float64)
                for j in range(n_key)
            ]
            weights[b, i] = torch.stack(terms) / sum(terms)
    return torch.einsum("bij,bjv->biv", weights, values), weights


@pytest.mark.parametrize("bias", [False, True])
def test_additive_attention_equals_its_formula(bias):
    """w . tanh(W_q q + W_k k), softmax, average; keys that are hidden have weight 0 and may hold NaN."""
    layer = AdditiveAttention(5, 7, 11, bias=bias).double()
    queries, keys, values = random(2, 3, 5), random(2, 13, 7), random(2, 13, 17)
    lengths = torch.tensor([13, 4])
    visible = Visibility(lengths=lengths)
    wanted, wanted_weights = additive_by_hand(layer, queries, keys, values, lambda b, i, j: j < lengths[b])
    keys[1, 4:], values[1, 4:] = torch.nan, torch.inf
    torch.testing.assert_close(layer(queries, keys, values, visible=visible), wanted, **EXACT)
    torch.testing.assert_close(layer.weights(queries, keys, visible), wanted_weights, **EXACT)


def test_additive_attention_gives_the_same_from_keys_projected_once():
    """`projected_keys` stands for W_k k, as a decoder computes it once for all its steps."""
    layer = AdditiveAttention(5, 7, 11).double()
    queries, keys, values = random(2, 3, 5), random(2, 13, 7), random(2, 13, 17)
    projected = layer.project_keys(keys)
    assert torch.equal(projected[:, 0], keys @ layer.key.weight.T)
    for step in range(3):
        one = queries[:, step : step + 1]
        torch.testing.assert_close(
            layer(one, keys, values, projected_keys=projected),
            layer(queries, keys, values)[:, step : step + 1],
            **EXACT,
        )


def test_additive_weights_are_recovered_from_what_record_is_given_and_gradients_are_right():
    """exp(w . tanh(q + k) - lse) is the softmax, and gradcheck holds for inputs and for w."""
    layer = AdditiveAttention(5, 3, 2).double()
    queries, keys, values = (random(2, n, dim).requires_grad_() for n, dim in ((2, 5), (3, 3), (3, 7)))
    (seen,) = seen_by(layer, queries, keys, values, name="align")
    hidden = torch.tanh(seen.q[:, 0, :, None] + seen.k[:, 0, None])
    recovered = (hidden @ layer.score - seen.lse[:, 0, :, None]).exp()
    torch.testing.assert_close(recovered, layer.weights(queries, keys), **EXACT)

    def out(queries, keys, values, score):
        return torch.func.functional_call(layer, {"score": score}, (queries, keys, values))

    assert torch.autograd.gradcheck(out, (queries, keys, values, layer.score.detach().requires_grad_()))


FORMULAS = {
    "relu": lambda x: x.clamp(min=0),
    "gelu": lambda x: x * (1 + torch.erf(x / 2**0.5)) / 2,
    "gelu_tanh": lambda x: x / 2 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + torch.exp(-x)),
}


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
@pytest.mark.parametrize("gated", [False, True])
def test_feed_forward_equals_its_formula(activation, gated):
    """down(act(up(x))), and gated down(act(gate(x)) * up(x)); the gate, not the rest, is activated."""
    ff = FeedForward(5, 7, activation=activation, gated=gated, bias=True, dropout=0.0).double()
    x = random(2, 3, 5)
    up, act = x @ ff.up.weight.T + ff.up.bias, FORMULAS[activation]
    hidden = act(x @ ff.gate.weight.T + ff.gate.bias) * up if gated else act(up)
    torch.testing.assert_close(ff(x), hidden @ ff.down.weight.T + ff.down.bias, **EXACT)


def test_the_norms_equal_their_formulas():
    """LayerNorm subtracts the mean and divides by the deviation, RMSNorm only divides; eps as configured."""
    x = random(2, 3, 12)
    layer = make_norm(BlockConfig(12, 3, 19, norm="layer", norm_eps=0.5))
    rms = make_norm(BlockConfig(12, 3, 19, norm="rms", norm_eps=0.5))
    centred = x - x.mean(-1, keepdim=True)
    torch.testing.assert_close(
        layer.double()(x), centred / (centred.square().mean(-1, keepdim=True) + 0.5).sqrt(), **EXACT
    )
    torch.testing.assert_close(rms.double()(x), x / (x.square().mean(-1, keepdim=True) + 0.5).sqrt(), **EXACT)


def test_a_blocks_dropout_is_random_in_training_only():
    """Two passes differ in train mode; in eval mode they equal a block without dropout."""
    block = Block(BlockConfig(12, 3, 19, dropout=0.5), cross=True)
    plain = Block(BlockConfig(12, 3, 19), cross=True)
    plain.load_state_dict(block.state_dict())
    x, memory = torch.randn(2, 5, 12), torch.randn(2, 7, 12)
    assert not torch.equal(block(x, memory), block(x, memory))
    block.eval()
    assert torch.equal(block(x, memory), plain(x, memory))


def test_the_window_of_a_block_is_for_causal_attention_only():
    """A decoder's window limits its self-attention, and neither its cross-attention nor an encoder's."""
    config = BlockConfig(12, 3, 19, window=2)
    decoder, encoder = Block(config, causal=True, cross=True), Block(config)
    x, memory = torch.randn(1, 5, 12), torch.randn(1, 7, 12)
    own, across = seen_by(decoder, x, memory)
    (whole,) = seen_by(encoder, x)
    assert own.rule.visible.tile(slice(0, 3), slice(0, 3))[0, 0].int().tolist() == [
        [1, 0, 0],
        [1, 1, 0],
        [0, 1, 1],
    ]
    assert across.rule.visible.everything
    assert whole.rule.visible.everything


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_a_block_can_be_pickled(activation):
    """As torch.save of a whole model and processes started by spawn need it."""
    block = Block(BlockConfig(12, 3, 19, activation=activation, gated=True), causal=True)
    x = torch.randn(2, 5, 12)
    assert torch.equal(pickle.loads(pickle.dumps(block))(x), block(x))
