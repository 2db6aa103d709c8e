"""Every operation of PyTorch that is private, or that some version, build or processor lacks.

They are asked for here and nowhere else. One that is missing is None, and whoever wants it has a plain way
to the same numbers; a test takes each of them away.
"""

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor


def _operator(space: str, name: str, overload: str = "default") -> Any:
    try:
        return getattr(getattr(getattr(torch.ops, space), name), overload)
    except (AttributeError, RuntimeError):
        return None


# Attention that returns the log-sum-exp. Without it: the plain and tiled paths, and decoding by `forward`.
FLASH_CPU = _operator("aten", "_scaled_dot_product_flash_attention_for_cpu")
FLASH_CPU_BACKWARD = _operator("aten", "_scaled_dot_product_flash_attention_for_cpu_backward")
FLASH_CUDA = _operator("aten", "_scaled_dot_product_flash_attention")
FLASH_CUDA_BACKWARD = _operator("aten", "_scaled_dot_product_flash_attention_backward")

# Matrices of float16. Without them: of float32.
HALF_PACK = _operator("quantized", "linear_prepack_fp16")
HALF_LINEAR = _operator("quantized", "linear_dynamic_fp16")

# Whole sequences, by the `mode` of torch.nn's layers. Without them: step by step.
SEQUENCE: dict[str, Any] = {mode: getattr(torch, mode.lower(), None) for mode in ("LSTM", "GRU")}

# A block in which nobody sees what functions are called. Without it: PyTorch's encoder off its fast path.
UNSEEN: Any = getattr(torch._C, "DisableTorchFunction", None)

# What torch.vmap and torch.func are doing. Without it: nobody is told that attention was inside of them.
_TRANSFORMS: Any = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", None)


def inside_a_transform() -> bool:
    """Return whether torch.vmap or torch.func is calling."""
    return _TRANSFORMS is not None and _TRANSFORMS() is not None


def values_unknown(tensor: Tensor) -> bool:
    """Whether what tensors hold cannot be asked: while compiling or exporting, and of fake and meta ones."""
    return torch.compiler.is_compiling() or tensor.is_meta or type(tensor).__name__ == "FakeTensor"


def needs_graph(*tensors: Tensor) -> bool:
    """Whether a gradient is to reach one of them."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def all_finite(*tensors: Tensor) -> bool:
    """Whether they are known to be finite, by their sums: these can overflow, but hide no NaN and no inf."""
    return not any(map(values_unknown, tensors)) and all(
        math.isfinite(t.detach().sum(dtype=torch.float32 if t.element_size() < 4 else None).item())
        for t in tensors
    )


def warm_up_mkl(tensor: Tensor) -> None:
    """Before the first work on a real tensor of the CPU: call MKL's vector functions once, in one thread.

    MKL finds them at their first call. Two threads that make it together may get 13 right bits instead of 24
    (measured: the first exp in 2 of 115 processes).
    """
    if type(tensor) is Tensor and tensor.is_cpu and not torch.compiler.is_compiling():
        _first_calls()


@cache
def _first_calls() -> None:
    for function in (torch.exp, torch.log, torch.tanh):
        function(torch.ones(8, device="cpu"))
