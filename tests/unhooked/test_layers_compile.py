"""torch.compile gives the numbers of eager mode; graph breaks are allowed."""

import shutil

import pytest
import torch
from torch import Tensor, nn

from regard.attention.visibility import Visibility
from regard.layers.attention import MultiHeadAttention
from regard.layers.block import Block, BlockConfig
from regard.layers.positions import Rotary

# The compiler fuses and reorders sums: a few roundings of float32's 6e-8 on numbers of about 1.
TOLERANCE = {"atol": 2e-5, "rtol": 1e-4}

# Three warnings that torch's compiler causes itself, whatever it compiles.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),  # when it is imported
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),  # after a graph break
    pytest.mark.filterwarnings("ignore:<class 'torch.autograd.function:DeprecationWarning"),  # at a Function
]

no_compiler = shutil.which("g++") is None and shutil.which("clang++") is None
backends = pytest.mark.parametrize(
    "backend",
    [
        "aot_eager",  # traces forward and backward as the default does, and generates no C++
        pytest.param(
            "inductor",
            marks=[
                pytest.mark.slow,
                pytest.mark.skipif(
                    no_compiler, reason="torch.compile's default backend needs a C++ compiler"
                ),
            ],
        ),
    ],
)


@pytest.fixture(autouse=True)
def _fresh_compiler():
    """What another test compiled, or its count of recompilations, has no say here."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def assert_compiles(backend: str, module: nn.Module, *inputs: Tensor, **options) -> None:
    """Output, and gradients of inputs and parameters, are the same compiled and eager."""
    leaves = [tensor.requires_grad_() for tensor in inputs] + list(module.parameters())
    wanted = module(*inputs, **options)
    direction = torch.randn_like(wanted)
    wanted_gradients = torch.autograd.grad(wanted, leaves, direction)
    compiled = torch.compile(module, backend=backend)
    got = compiled(*inputs, **options)
    assert got.shape == wanted.shape
    torch.testing.assert_close(got, wanted, **TOLERANCE)
    gradients = torch.autograd.grad(got, leaves, direction)
    torch.testing.assert_close(gradients, wanted_gradients, **TOLERANCE)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*inputs, **options), wanted, **TOLERANCE)


@backends
@pytest.mark.parametrize(
    ("n_kv_head", "causal"), [(4, False), (2, True)], ids=["multi-head", "grouped, causal"]
)
def test_a_compiled_layer_gives_the_same_numbers_forward_and_backward(backend, n_kv_head, causal):
    """Self-attention, through the fused path."""
    layer = MultiHeadAttention(20, 4, n_kv_head=n_kv_head, causal=causal, bias=True)
    assert_compiles(backend, layer, torch.randn(2, 7, 20))


def test_a_compiled_layer_with_wide_values_and_padding_gives_the_same_numbers():
    """Cross-attention, through the plain path."""
    layer = MultiHeadAttention(20, 4, v_dim=11, memory_dim=13)
    visible = Visibility(lengths=torch.tensor([3, 11]))
    assert_compiles("aot_eager", layer, torch.randn(2, 7, 20), torch.randn(2, 11, 13), visible=visible)


@backends
def test_a_compiled_block_gives_the_same_numbers_forward_and_backward(backend):
    """A decoder block with rotary positions, a gate, RMSNorm and grouped heads."""
    config = BlockConfig(20, 5, 23, n_kv_head=1, norm="rms", activation="silu", gated=True)
    block = Block(config, causal=True)
    turn = Rotary(4)(torch.arange(7)[None])
    assert_compiles(backend, block, torch.randn(2, 7, 20), rotary=turn)


@pytest.mark.slow
def test_a_compiled_block_with_memory_gives_the_same_numbers():
    """Self- and cross-attention, LayerNorm after the residual, padding in the memory."""
    block = Block(BlockConfig(20, 5, 23, norm_first=False, activation="gelu_tanh"), causal=True, cross=True)
    keys = torch.arange(11) < torch.tensor([[11], [4]])
    memory_visible = Visibility(key_mask=keys)
    x, memory = torch.randn(2, 7, 20), torch.randn(2, 11, 20)
    assert_compiles("aot_eager", block, x, memory, memory_visible=memory_visible)


def test_a_compiled_layer_takes_sequences_of_several_lengths():
    """As in training: no length is baked in."""
    layer = MultiHeadAttention(20, 4, causal=True)
    compiled = torch.compile(layer, backend="aot_eager")
    for length in (7, 5, 11, 1):
        x = torch.randn(2, length, 20)
        torch.testing.assert_close(compiled(x), layer(x), **TOLERANCE)


def test_garbage_stays_hidden_when_compiled():
    """The check for numbers that are not finite is not compiled away."""
    layer = MultiHeadAttention(20, 4)
    compiled = torch.compile(layer, backend="aot_eager")
    x, memory = torch.randn(2, 7, 20), torch.randn(2, 11, 20)
    visible = Visibility(lengths=torch.tensor([11, 4]))
    wanted = layer(x, memory, visible=visible)
    torch.testing.assert_close(compiled(x, memory, visible=visible), wanted, **TOLERANCE)
    memory[1, 4:] = torch.nan
    torch.testing.assert_close(compiled(x, memory, visible=visible), wanted, **TOLERANCE)
