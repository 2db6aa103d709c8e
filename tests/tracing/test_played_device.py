"""A device that is played: real numbers that say they are on cuda:0, and refuse to meet any that are not.

Whatever makes a tensor without asking where its inputs are mixes devices; on a machine without a graphics
card nobody would notice.
"""

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

import regard
from regard.decoding.loop import generate
from regard.files.loading import load
from regard.heads.measures import measure

CUDA = torch.device("cuda", 0)
# These may take tensors of two devices, or carry one from the other.
ACROSS = {"to", "cpu", "copy_", "__get__", "__set__", "as_subclass", "type", "__repr__", "set_"}


class Played(torch.Tensor):
    """Numbers of the processor that say they are of a graphics card."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = func.__name__
        if func == torch.Tensor.device.__get__:
            return CUDA
        if func == torch.Tensor.is_cuda.__get__:
            return True
        flat = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, torch.Tensor)]
        mixed = [value for value in flat if not isinstance(value, Played) and value.dim()]
        if name in ("__getitem__", "__setitem__"):  # places may be told by the processor
            mixed = [value for value in mixed if value.is_floating_point()]
        if mixed and name not in ACROSS and any(isinstance(value, Played) for value in flat):
            raise RuntimeError(f"{name}: {[tuple(t.shape) for t in mixed]} of the processor meet {CUDA}")
        if name in ("numpy", "__array__") and args[0].dim():
            raise RuntimeError("numbers of a graphics card are not NumPy's")
        places = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.device | str)]
        to_cpu = name == "cpu" or (name == "to" and any("cpu" in str(place) for place in places))
        args, kwargs = on_cpu((args, kwargs))
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*args, **kwargs)
        keeps = not to_cpu and name not in ("__repr__", "tolist", "item")
        return tree_map(played, out) if keeps else tree_map(plain, out)


def on_cpu(values):
    return tree_map(lambda v: torch.device("cpu") if isinstance(v, torch.device) else v, values)


def played(value):
    alone = type(value) in (torch.Tensor, torch.nn.Parameter)
    return value.as_subclass(Played) if alone else value


def plain(value):
    return value.as_subclass(torch.Tensor) if isinstance(value, Played) else value


class Machine(TorchFunctionMode):
    """Tensors that are made on the played device are played."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = torch.device("cpu")
            return tree_map(played, func(*args, **kwargs))
        moved = getattr(func, "__name__", "") == "to" and any(str(arg).startswith("cuda") for arg in args[1:])
        if moved and not isinstance(args[0], Played):
            return played(args[0])
        return func(*args, **kwargs)


def on_machine(module):
    """The module with its parameters and buffers on the played device."""
    for part in module.modules():
        for name, parameter in list(part._parameters.items()):
            if parameter is not None:
                part._parameters[name] = torch.nn.Parameter(parameter.detach().as_subclass(Played))
        for name, buffer in list(part._buffers.items()):
            if buffer is not None:
                part._buffers[name] = buffer.as_subclass(Played)
    return module


@pytest.fixture(autouse=True)
def machine():
    with Machine():
        yield


def test_the_played_device_refuses_a_mix():
    """Else the tests below would say nothing."""
    ones = torch.ones(3).as_subclass(Played)
    assert ones.device == CUDA
    assert (ones + ones).device == torch.arange(3, device=ones.device).device == CUDA
    with pytest.raises(RuntimeError, match="of the processor meet cuda"):
        ones + torch.ones(3)


@pytest.mark.parametrize("rule", [regard.ScoreRule(), regard.ScoreRule(softcap=5.0)], ids=["plain", "capped"])
@torch.no_grad()
def test_attend_stays_where_its_inputs_are(rule):
    """Output and log-sum-exp."""
    q, k, v = (torch.randn(2, 3, 7, 8) for _ in range(3))
    wanted = regard.attend(q, k, v, rule)
    out = regard.attend(*(tensor.as_subclass(Played) for tensor in (q, k, v)), rule)
    assert out.out.device == out.lse.device == CUDA
    torch.testing.assert_close(plain(out.out), wanted.out, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_layer_stays_where_its_input_is():
    """With a key mask, too."""
    layer = on_machine(regard.MultiHeadAttention(12, 3).eval())
    x = torch.randn(2, 5, 12).as_subclass(Played)
    assert layer(x).device == CUDA


@pytest.mark.parametrize("family", ["gpt2", "bert", "llama"])
@torch.no_grad()
def test_a_model_is_traced_measured_and_changed_where_it_is(family):
    """The weights are those of the processor; measures and changes mix nothing."""
    loaded = load(family, random=True)
    ids = torch.tensor([[5, 7, 11, 13, 17]])
    wanted = regard.trace(loaded.model, ids, layers=[0]).weights(0, 3)
    on_machine(loaded.model)
    ids = ids.as_subclass(Played)
    found = regard.trace(loaded.model, ids, layers=[0])
    assert found.checks.passed, str(found.checks)
    torch.testing.assert_close(plain(found.weights(0, 3)), wanted, rtol=1e-4, atol=1e-5)
    measure(found)
    with regard.intervene(loaded.model) as run:
        run.knock_out(layer=0, head=1, query=3, key=2)
        run.gate(layer=1, head=2, by=0.5)
        assert loaded.model(ids).hidden.device == CUDA


@torch.no_grad()
def test_a_model_writes_where_it_is():
    """Three tokens."""
    loaded = load("gpt2", random=True)
    on_machine(loaded.model)
    assert (
        len(generate(loaded.model, torch.tensor([[5, 7, 11]]).as_subclass(Played), max_new=3).tokens[0]) == 3
    )


def test_a_step_of_training_stays_where_the_model_is():
    """Loss, gradients, update."""
    model = on_machine(load("gpt2", random=True).model.train())
    ids = torch.tensor([[5, 7, 11, 13]]).as_subclass(Played)
    logits = model(ids).logits
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.sub_(0.01 * parameter.grad)
    assert loss.device == CUDA


@torch.no_grad()
def test_attention_by_hand_is_traced_and_changed_where_it_is():
    """A user's own module."""

    class Own(torch.nn.Module):
        def forward(self, x):
            return torch.matmul(torch.matmul(x, x.mT).softmax(-1), x)

    x = torch.randn(2, 5, 8).as_subclass(Played)
    assert regard.trace(Own(), x).checks.passed
    with regard.intervene(model := Own()) as run:
        run.knock_out(layer=0, query=1, key=2, batch=0)
        assert model(x).device == CUDA
