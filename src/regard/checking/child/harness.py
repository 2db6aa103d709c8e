"""Makes the calls of an answer and reports what came out. Lives in the child process: needs torch alone.

It gets inputs and returns results. It never sees an expected value, so nothing that an answer does here,
such as replacing parts of torch or looking up its caller, can make a wrong result right.
"""

import contextlib
import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import process_time
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from .loader import Schedule, failure, load, time_limit
from .messages import Answer, Code, Failure, Job, NotData, Order, Outcome, Tree, gradients, leaves, mapped
from .watcher import SoftmaxWatch, watched
from .weights import Place, fitted, transfer
from .wire import DTYPES

MOST_NUMBERS_OUT = 4_000_000
MOST_TIMEOUTS = 3


class Largest(TorchDispatchMode):
    """Notes the largest tensor that any operation allocates; a view counts as what it looks at."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for _, leaf in leaves(out):
            if isinstance(leaf, Tensor):
                self.numbers = max(self.numbers, leaf.untyped_storage().nbytes() // leaf.element_size())
        return out


class Elsewhere(TorchDispatchMode):
    """Lets the meta device stand for a GPU: copies between it and the CPU work, other mixtures fail.

    A number read from it is 0, so that code which looks at numbers goes on to where its results are.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        packet = func.overloadpacket
        aten = torch.ops.aten
        if packet is aten.copy_ and args[1].device.type == "meta" and args[0].device.type == "cpu":
            return args[0]
        device = kwargs.get("device")
        if packet is aten._to_copy and device is not None and torch.device(device).type == "cpu":
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        if packet is aten._local_scalar_dense and args[0].device.type == "meta":
            return torch.zeros((), dtype=args[0].dtype).item()
        if packet not in (aten.copy_, aten._to_copy):
            indexed = packet in (aten.index, aten.index_put_, aten.index_put, aten._index_put_impl_)
            # Indices on the CPU are fine for a tensor on a GPU, and so are single numbers.
            inputs = [args[0], *args[2:]] if indexed else [list(args), kwargs]
            tensors = [leaf for _, leaf in leaves(inputs) if isinstance(leaf, Tensor) and leaf.dim()]
            if len({tensor.device.type for tensor in tensors}) > 1:
                raise RuntimeError(f"Expected all tensors to be on the same device: {func}")
        return func(*args, **kwargs)


def packed(value: Any) -> Tree:
    """The value as what can be sent: tensors, numbers, strings, None, and nests of them."""

    def leaf(item: Any) -> Any:
        if isinstance(item, Tensor):
            if item.device.type == "meta":
                return NotData("a tensor")
            if item.numel() > MOST_NUMBERS_OUT:
                return NotData(f"a tensor of shape {tuple(item.shape)}, too large to compare")
            return item.detach()
        if item is None or type(item) in (bool, int, float, str):
            return item
        if type(item).__module__ == "numpy":
            with contextlib.suppress(TypeError, ValueError):
                return torch.as_tensor(item)
        if isinstance(item, int | float):
            return float(item)
        return NotData(f"a {type(item).__name__}")

    return mapped(value, leaf)


def _code(item: Any) -> Any:
    """The function that a `Code` stands for, anything else as it is."""
    return item.value() if isinstance(item, Code) else item


def _other(item: Any) -> Any:
    """Other numbers of the same shape; whole ones, such as lengths, in another order."""
    if not isinstance(item, Tensor) or not item.dim():
        return item
    return 0.3 - item.flip(0) if item.is_floating_point() else item.flip(0)


def _renamed(target: Any) -> Any:
    """The same, for answers whose one optional argument has a name of their own: it is given by position."""
    try:
        parameters = list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        return target
    plain = [part for part in parameters if part.kind in (part.POSITIONAL_ONLY, part.POSITIONAL_OR_KEYWORD)]
    if any(part.kind is part.VAR_KEYWORD for part in parameters):
        return target
    names = {part.name for part in parameters}

    def call(*args: Any, **kwargs: Any) -> Any:
        if len(kwargs) == 1 and len(plain) == len(args) + 1 and not names & set(kwargs):
            return target(*args, *kwargs.values())
        return target(*args, **kwargs)

    return call


def _strided(tensor: Tensor) -> Tensor:
    """Equal numbers, laid out so that the tensor is not contiguous."""
    if tensor.dim() >= 2:
        return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
    wide = torch.stack([tensor, tensor], dim=-1)
    return wide[..., 0]


def made(answer: Answer, subjects: dict[str, Any], drive: Callable[..., Any] | None, order: Order) -> Outcome:
    """What one call gives, or why it gives nothing."""
    torch.set_default_dtype(DTYPES[order.dtype or "float32"])
    torch.set_grad_enabled(True)
    torch.default_generator.manual_seed(1 + order.id)  # `torch.manual_seed` also asks every other device
    case = order.case
    dtype = DTYPES.get(order.dtype or order.kind)
    twice, device = order.kind == "called twice", order.kind == "device"
    inputs: list[Tensor] = []

    def prepared(item: Any) -> Any:
        if not isinstance(item, Tensor):
            return _code(item)
        item = item.clone()
        if dtype and item.is_floating_point():
            item = item.to(dtype)
        if order.kind == "non-contiguous inputs":
            item = _strided(item)
        if device:
            item = item.to("meta")
        if order.kind == "gradients" and item.is_floating_point():
            item.requires_grad_(True)
        inputs.append(item)
        return item

    known: dict[str, Any] = {}  # fields of the outcome, as far as it came
    before: list[Tensor] = []
    doing = "construct"
    try:
        subject: Any = next(iter(subjects.values()))
        if answer.is_class:
            subject = subject(*mapped(case.init, _code), **mapped(case.init_kwargs, _code))
        elif len(subjects) > 1:
            subject = type("Functions", (), {name: staticmethod(value) for name, value in subjects.items()})
        if answer.is_class and isinstance(subject, nn.Module):
            known["unfit"] = transfer(subject, case.weights)
            if dtype or device:
                subject.to(device="meta" if device else None, dtype=dtype)
            subject.train(case.train)
            subject.forward = _renamed(subject.forward)
        doing = "error"
        if case.call and drive is None and not hasattr(subject, case.call):
            return Outcome(error=Failure("missing", message=case.call), **known)
        target = partial(drive, subject) if drive is not None else _target(subject, case.call)
        args, kwargs = mapped(case.args, prepared), mapped(case.kwargs, prepared)
        before = [item.detach().clone() for item in inputs]
        with contextlib.ExitStack() as watched:
            largest = watched.enter_context(Largest()) if order.largest else None
            softmaxes = watched.enter_context(SoftmaxWatch()) if order.kind == "value" else None
            if device:
                watched.enter_context(Elsewhere())  # type: ignore[no-untyped-call]
            if twice:
                with contextlib.suppress(Exception):  # what an answer keeps of other inputs must not show
                    target(*mapped(args, _other), **mapped(kwargs, _other))
            value = target(*args, **kwargs)
            again = target(*args, **kwargs) if twice else None
        known |= {"value": packed(value), "again": packed(again)}
        known["largest"] = largest.numbers if largest else 0
        known["doubled"] = softmaxes.lines if softmaxes else []
        if order.kind == "gradients":
            doing = "gradient"
            known["grads"] = _gradients(value, inputs, subject, case.weights)
    except BaseException as error:
        known["error"] = failure(error, doing)
    return Outcome(changed=_changed(before, inputs), **known)


def _target(subject: Any, call: str) -> Any:
    """What is called of a module, a class of the answer's own, a function or several."""
    if call:
        return _renamed(getattr(subject, call))
    if isinstance(subject, nn.Module):
        return subject
    return _renamed(subject if callable(subject) else subject.forward)


def _changed(before: list[Tensor], after: list[Tensor]) -> list[int]:
    """Which inputs are no longer what they were."""
    pairs = [[item.detach().nan_to_num(7.25) for item in pair] for pair in zip(before, after, strict=False)]
    differ = [old.device.type != "meta" and not torch.equal(old, new) for old, new in pairs]
    return [index for index, changed in enumerate(differ) if changed]


def _gradients(
    value: Any, inputs: list[Tensor], subject: Any, weights: dict[str, Tensor]
) -> dict[str, Tensor | None]:
    """Gradients for each floating input and each weight, by its name."""
    places: dict[str, Place] = {}
    if isinstance(subject, nn.Module):
        places = fitted(dict(subject.named_parameters()), weights)
    wanted = {f"input {index}": item for index, item in enumerate(inputs) if item.requires_grad}
    grads = gradients(value, wanted | {name: place.parameter for name, place in places.items()})
    return {
        name: places[name].view(grad) if grad is not None and name in places else grad
        for name, grad in grads.items()
    }


def work(
    job: Job, send: Callable[[Any], None], unconfined: list[str], schedule: Schedule | None = None
) -> None:
    """Load the answer and make its runs, sending each outcome as it is known."""
    answer = job.answer
    schedule = schedule or Schedule()
    report, subjects = load(answer, send, schedule)
    send(replace(report, unconfined=unconfined))
    if report.missing:
        return
    scope: dict[str, Any] = {"torch": torch, "drive": None}
    exec(compile(answer.drive, "<drive>", "exec"), scope)
    timeouts = 0
    for order in job.orders:
        if timeouts >= MOST_TIMEOUTS:
            send(Outcome(order.id, error=Failure("not run")))
            continue
        began = process_time()
        with watched(answer.notes if order.watched else []) as seen:
            try:
                with time_limit(job.seconds, schedule):
                    outcome = made(answer, subjects, scope["drive"], order)
            except BaseException as error:
                outcome = Outcome(error=failure(error))
        unfit, weights = outcome.unfit, order.case.weights
        at_random = unfit.yours or (weights and len(unfit.ours) == len(weights))
        if at_random and outcome.error is None:
            outcome = replace(outcome, error=Failure("unfit"))  # its numbers tell nothing
        timeouts += outcome.error is not None and outcome.error.kind == "time"
        send(replace(outcome, run=order.id, seen=seen, seconds=process_time() - began))
