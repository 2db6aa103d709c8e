"""Runs an answer's calls and reports what came out. Lives in the child process: needs torch alone.

It is given inputs and returns results. It never sees an expected value, so nothing that an answer does here,
such as replacing parts of torch or looking up its caller, can make a wrong result right.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from .limits import failure, time_limit
from .loader import load
from .messages import Case, Code, Done, Failure, Foreign, Job, Loading, Meta, Order, Outcome, Tree, Unfit
from .trees import leaves, mapped, weighted_sum
from .watcher import Watcher
from .weights import Place, fitted, transfer

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
            given = [args[0], *args[2:]] if indexed else [list(args), kwargs]
            met = {leaf.device.type for _, leaf in leaves(given) if isinstance(leaf, Tensor) and leaf.dim()}
            if len(met) > 1:
                raise RuntimeError(f"Expected all tensors to be on the same device: {func}")
        return func(*args, **kwargs)


def packed(value: Any) -> Tree:
    """The value as what can be sent: tensors, numbers, strings, None, and nests of them."""

    def leaf(item: Any) -> Any:
        if isinstance(item, Tensor):
            if item.device.type == "meta":
                return Meta(list(item.shape), str(item.dtype).removeprefix("torch."))
            if item.numel() > MOST_NUMBERS_OUT:
                return Foreign(f"a tensor of shape {tuple(item.shape)}, too large to compare")
            return item.detach()
        if item is None or type(item) in (bool, int, float, str):
            return item
        if type(item).__module__ == "numpy":
            with contextlib.suppress(TypeError, ValueError):
                return torch.as_tensor(item)
        if isinstance(item, int | float):
            return float(item)
        return Foreign(f"a {type(item).__name__}")

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
    plain = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return target
    names = {each.name for each in parameters}

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


class Loaded:
    """A loaded answer: what its functions and classes are called with."""

    def __init__(self, subjects: dict[str, Any], drive: str, is_class: bool) -> None:
        self.subjects, self.is_class = subjects, is_class
        self.drive: Callable[..., Any] | None = None
        if drive:
            scope: dict[str, Any] = {"torch": torch}
            exec(compile(drive, "<drive>", "exec"), scope)
            self.drive = scope["drive"]

    def run(self, case: Case, order: Order) -> Outcome:
        """The outcome of one case."""
        torch.set_default_dtype(torch.float32)
        torch.set_grad_enabled(True)
        torch.default_generator.manual_seed(order.seed)  # `torch.manual_seed` also asks every other device
        inputs: list[Tensor] = []

        def prepared(item: Any) -> Any:
            if not isinstance(item, Tensor):
                return _code(item)
            item = item.clone()
            if order.dtype and item.is_floating_point():
                item = item.to(getattr(torch, order.dtype))
            if order.strided:
                item = _strided(item)
            if order.device:
                item = item.to(order.device)
            if order.gradients and item.is_floating_point():
                item.requires_grad_(True)
            inputs.append(item)
            return item

        try:
            target, module, unfit = self._target(case, order)
        except _Refused as refused:
            return Outcome(error=refused.failure, unfit=refused.unfit)
        out = Outcome(unfit=unfit)
        args, kwargs = mapped(case.args, prepared), mapped(case.kwargs, prepared)
        before = [item.detach().clone() for item in inputs]
        largest = Largest()
        try:
            with contextlib.ExitStack() as watched:
                if order.largest:
                    watched.enter_context(largest)
                if order.device:
                    watched.enter_context(Elsewhere())  # type: ignore[no-untyped-call]
                if order.twice:
                    with contextlib.suppress(Exception):  # what an answer keeps of other inputs must not show
                        target(*mapped(args, _other), **mapped(kwargs, _other))
                value = target(*args, **kwargs)
                again = target(*args, **kwargs) if order.twice else None
        except BaseException as error:
            return replace(out, error=failure(error), changed=_changed(before, inputs))
        out = replace(
            out,
            value=packed(value),
            again=packed(again),
            changed=_changed(before, inputs),
            largest=largest.numbers,
        )
        if order.gradients:
            try:
                out = replace(out, grads=_gradients(value, inputs, module, case.weights))
            except BaseException as error:
                out = replace(out, error=failure(error, "gradient"))
        return out

    def _target(self, case: Case, order: Order) -> tuple[Callable[..., Any], Any, Unfit | None]:
        """What is called, the module it belongs to, and which of our weights do not fit it."""
        subject: Any = next(iter(self.subjects.values()))
        module, unfit = None, None
        if self.is_class:
            try:
                module = subject(*mapped(case.init, _code), **mapped(case.init_kwargs, _code))
                if isinstance(module, nn.Module):
                    unfit = transfer(module, case.weights)
                    if order.dtype:
                        module.to(getattr(torch, order.dtype))
                    if order.device:
                        module.to(order.device)
                    module.train(case.train)
                    module.forward = _renamed(module.forward)
            except BaseException as error:
                raise _Refused(failure(error, "construct"), unfit) from error
            subject = module
        elif len(self.subjects) > 1:
            subject = type(
                "Functions", (), {name: staticmethod(value) for name, value in self.subjects.items()}
            )
        if self.drive is not None:
            driven = self.drive
            return (lambda *args, **kwargs: driven(subject, *args, **kwargs)), module, unfit
        if case.call:
            if not hasattr(subject, case.call):
                raise _Refused(Failure("missing", message=case.call), unfit)
            return _renamed(getattr(subject, case.call)), module, unfit
        if isinstance(subject, nn.Module):
            return subject, module, unfit
        return _renamed(subject if callable(subject) else subject.forward), module, unfit


class _Refused(Exception):
    """No call could be made; `failure` says why."""

    def __init__(self, failure: Failure, unfit: Unfit | None) -> None:
        super().__init__(failure.message)
        self.failure, self.unfit = failure, unfit


def _changed(before: list[Tensor], after: list[Tensor]) -> list[int]:
    """Which inputs are no longer what they were."""
    changed = []
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        if old.device.type == "meta":
            continue
        same = old.shape == new.shape and torch.equal(
            old.nan_to_num(nan=7.25), new.detach().nan_to_num(nan=7.25)
        )
        if not same:
            changed.append(index)
    return changed


def _gradients(
    value: Any, inputs: list[Tensor], module: Any, weights: dict[str, Tensor]
) -> dict[str, Tensor | None]:
    """Gradients of the weighted sum for each floating input and each weight, by its name."""
    names = [f"input {index}" for index, item in enumerate(inputs) if item.requires_grad]
    wanted = [item for item in inputs if item.requires_grad]
    places: dict[str, Place] = {}
    if isinstance(module, nn.Module):
        places, _ = fitted(dict(module.named_parameters()), weights)
    names += places
    total = weighted_sum(value)
    if total is None:
        return dict.fromkeys(names)
    wanted += [place.parameter for place in places.values()]
    grads = dict(zip(names, torch.autograd.grad(total, wanted, allow_unused=True), strict=True))
    return {
        name: places[name].view(grad) if grad is not None and name in places else grad
        for name, grad in grads.items()
    }


def work(job: Job, send: Callable[[Any], None], unconfined: list[str]) -> None:
    """Load each answer of the job and make its runs, sending each outcome as it is known."""
    for number, answer in enumerate(job.answers):

        def tell(statement: int, where: str, number: int = number) -> None:
            send(Loading(number, statement, where))

        report, subjects = load(answer, tell)
        send(replace(report, answer=number, unconfined=unconfined))
        if subjects is None:
            continue
        loaded = Loaded(subjects, answer.drive, answer.is_class)
        timeouts = 0
        for order in job.orders:
            if timeouts >= MOST_TIMEOUTS:
                send(Outcome(number, order.id, error=Failure("not run")))
                continue
            watcher = Watcher(answer.notes if order.watched else [])
            try:
                with time_limit(job.seconds), watcher:
                    outcome = loaded.run(job.cases[order.case], order)
            except BaseException as error:
                outcome = Outcome(error=failure(error))
            if outcome.error is not None and outcome.error.kind == "time":
                timeouts += 1
            send(replace(outcome, answer=number, run=order.id, seen=watcher.seen()))
        send(Done(number))
