"""Layers and blocks against those of torch.nn with copied weights."""

import pytest
import torch
from torch import Tensor, nn

from regard.attention.visibility import Visibility
from regard.layers.attention import MultiHeadAttention
from regard.layers.block import Block, BlockConfig

BATCH, N_HEAD, MODEL_DIM, FF_DIM, N_QUERY, N_KEY = 2, 3, 15, 17, 7, 11
# A few hundred roundings of 1e-16, or of 6e-8.
TOLERANCE = {torch.float64: {"atol": 1e-12, "rtol": 1e-10}, torch.float32: {"atol": 3e-6, "rtol": 1e-5}}

dtypes = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])


@torch.no_grad()
def copy_attention(ours: MultiHeadAttention, peer: nn.MultiheadAttention) -> None:
    weights = (
        peer.in_proj_weight.chunk(3)
        if peer.in_proj_weight is not None
        else (peer.q_proj_weight, peer.k_proj_weight, peer.v_proj_weight)
    )
    for part, weight in zip((ours.query, ours.key, ours.value), weights, strict=True):
        part.weight.copy_(weight)
    ours.out.weight.copy_(peer.out_proj.weight)
    if peer.in_proj_bias is not None:
        nn.init.normal_(peer.in_proj_bias)  # they start at 0, which would hide a wrong one
        nn.init.normal_(peer.out_proj.bias)
        for part, bias in zip((ours.query, ours.key, ours.value), peer.in_proj_bias.chunk(3), strict=True):
            part.bias.copy_(bias)
        ours.out.bias.copy_(peer.out_proj.bias)


@pytest.fixture(autouse=True)
def same_numbers_in_float32(request):
    """Where sums cancel, single precision has more error than its tolerance; float64 takes any numbers."""
    if "float32" in request.node.name:
        torch.manual_seed(0)


def copy_module(ours: nn.Module, peer: nn.Module) -> None:
    for parameter in peer.parameters():
        nn.init.normal_(parameter)  # norms start at 1 and 0, which would hide a wrong one
    ours.load_state_dict(peer.state_dict())


def pair(dtype: torch.dtype, bias: bool = True, memory_dim: int = MODEL_DIM, causal: bool = False):
    peer = nn.MultiheadAttention(
        MODEL_DIM, N_HEAD, bias=bias, kdim=memory_dim, vdim=memory_dim, batch_first=True, dtype=dtype
    )
    ours = MultiHeadAttention(MODEL_DIM, N_HEAD, memory_dim=memory_dim, bias=bias, causal=causal).to(dtype)
    copy_attention(ours, peer)
    return ours, peer


def assert_same_gradients(ours: Tensor, theirs: Tensor, *inputs: Tensor) -> None:
    direction = torch.randn_like(ours)
    torch.testing.assert_close(
        torch.autograd.grad(ours, inputs, direction),
        torch.autograd.grad(theirs, inputs, direction),
        **TOLERANCE[ours.dtype],
    )


@dtypes
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_self_attention_equals_that_of_torch(dtype, bias, training):
    """Output, weights of every head, and the gradient of the input."""
    ours, peer = pair(dtype, bias)
    ours.train(training)
    peer.train(training)
    x = torch.randn(BATCH, N_QUERY, MODEL_DIM, dtype=dtype, requires_grad=True)
    wanted, wanted_weights = peer(x, x, x, average_attn_weights=False)
    got, weights = ours(x, return_weights=True)
    torch.testing.assert_close(got, wanted, **TOLERANCE[dtype])
    torch.testing.assert_close(weights, wanted_weights, **TOLERANCE[dtype])
    assert_same_gradients(got, wanted, x)


@dtypes
@pytest.mark.parametrize("memory_dim", [MODEL_DIM, 13])
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_cross_attention_equals_that_of_torch(dtype, memory_dim, padded):
    """Memory of another length and width, part of it padding (True = hidden there, True = visible here)."""
    ours, peer = pair(dtype, memory_dim=memory_dim)
    x = torch.randn(BATCH, N_QUERY, MODEL_DIM, dtype=dtype, requires_grad=True)
    memory = torch.randn(BATCH, N_KEY, memory_dim, dtype=dtype, requires_grad=True)
    lengths = torch.tensor([N_KEY, 4])
    hidden = torch.arange(N_KEY) >= lengths[:, None] if padded else None
    wanted, _ = peer(x, memory, memory, key_padding_mask=hidden)
    by_length = ours(x, memory, visible=Visibility(lengths=lengths) if padded else None)
    by_key = ours(x, memory, visible=None if hidden is None else Visibility(key_mask=~hidden))
    torch.testing.assert_close(by_length, wanted, **TOLERANCE[dtype])
    torch.testing.assert_close(by_key, wanted, **TOLERANCE[dtype])
    assert_same_gradients(by_length, wanted, x, memory)


@dtypes
@pytest.mark.parametrize("batch", [1, 3])
def test_causal_attention_with_padding_equals_that_of_torch(dtype, batch):
    """Causal by the layer's flag, padding by `keys`, their masks read by `from_torch_masks` too."""
    ours, peer = pair(dtype, causal=True)
    free, _ = pair(dtype)
    free.load_state_dict(ours.state_dict())
    x = torch.randn(batch, N_QUERY, MODEL_DIM, dtype=dtype, requires_grad=True)
    future = torch.ones(N_QUERY, N_QUERY, dtype=torch.bool).triu(1)
    hidden = torch.zeros(batch, N_QUERY, dtype=torch.bool)
    hidden[-1, 4:] = True
    wanted, _ = peer(x, x, x, attn_mask=future, key_padding_mask=hidden)
    got = ours(x, visible=Visibility(key_mask=~hidden))
    torch.testing.assert_close(got, wanted, **TOLERANCE[dtype])
    visible, bias = Visibility.from_torch_masks(future, hidden, N_HEAD)
    assert bias is None
    torch.testing.assert_close(free(x, visible=visible), wanted, **TOLERANCE[dtype])
    assert_same_gradients(got, wanted, x)


def block_pair(dtype: torch.dtype, activation: str, norm_first: bool, bias: bool, cross: bool):
    kind = nn.TransformerDecoderLayer if cross else nn.TransformerEncoderLayer
    peer = kind(
        MODEL_DIM,
        N_HEAD,
        FF_DIM,
        dropout=0.0,
        activation=activation,
        layer_norm_eps=1e-3,
        batch_first=True,
        norm_first=norm_first,
        bias=bias,
        dtype=dtype,
    )
    config = BlockConfig(
        MODEL_DIM,
        N_HEAD,
        FF_DIM,
        norm_first=norm_first,
        norm_eps=1e-3,
        activation=activation,
        attention_bias=bias,
        ff_bias=bias,
    )
    ours = Block(config, causal=cross, cross=cross).to(dtype)
    copy_attention(ours.attention, peer.self_attn)
    copy_module(ours.ff.up, peer.linear1)
    copy_module(ours.ff.down, peer.linear2)
    norms = (
        [ours.attention_norm, ours.cross_norm, ours.ff_norm] if cross else [ours.attention_norm, ours.ff_norm]
    )
    for index, norm in enumerate(norms):
        peer_norm = getattr(peer, f"norm{index + 1}")
        nn.init.normal_(peer_norm.weight)
        norm.load_state_dict(
            peer_norm.state_dict(), strict=bias
        )  # without bias, torch's norms have none either
    if cross:
        copy_attention(ours.cross, peer.multihead_attn)
    return ours, peer


places = pytest.mark.parametrize("norm_first", [True, False], ids=["pre-norm", "post-norm"])
activations = pytest.mark.parametrize("activation", ["relu", "gelu"])
biases = pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])


@dtypes
@places
@activations
@biases
def test_an_encoder_block_equals_that_of_torch(dtype, activation, norm_first, bias):
    """With padding; output and gradient of the input."""
    ours, peer = block_pair(dtype, activation, norm_first, bias, cross=False)
    x = torch.randn(BATCH, N_QUERY, MODEL_DIM, dtype=dtype, requires_grad=True)
    hidden = torch.arange(N_QUERY) >= torch.tensor([N_QUERY, 3])[:, None]
    wanted = peer(x, src_key_padding_mask=hidden)
    got = ours(x, visible=Visibility(key_mask=~hidden))
    torch.testing.assert_close(got, wanted, **TOLERANCE[dtype])
    assert_same_gradients(got, wanted, x)


@dtypes
@places
@activations
@biases
def test_a_decoder_block_equals_that_of_torch(dtype, activation, norm_first, bias):
    """Causal over itself, padded memory; output and gradients of input and memory."""
    ours, peer = block_pair(dtype, activation, norm_first, bias, cross=True)
    x = torch.randn(BATCH, N_QUERY, MODEL_DIM, dtype=dtype, requires_grad=True)
    memory = torch.randn(BATCH, N_KEY, MODEL_DIM, dtype=dtype, requires_grad=True)
    hidden = torch.arange(N_KEY) >= torch.tensor([4, N_KEY])[:, None]
    future = torch.ones(N_QUERY, N_QUERY, dtype=torch.bool).triu(1)
    wanted = peer(x, memory, tgt_mask=future, memory_key_padding_mask=hidden)
    got = ours(x, memory, memory_visible=Visibility(key_mask=~hidden))
    torch.testing.assert_close(got, wanted, **TOLERANCE[dtype])
    assert_same_gradients(got, wanted, x, memory)
