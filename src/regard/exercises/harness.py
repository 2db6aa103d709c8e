"""Runs an answer's calls and reports what came out. Lives in the child process: needs torch alone.

It is given inputs and returns results. It never sees an expected value, so nothing that an answer does here,
such as replacing parts of torch or looking up its caller, can make a wrong result right.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

Send = Callable[[dict[str, Any]], None]
MOST_NUMBERS_OUT = 4_000_000
MOST_TIMEOUTS = 3


class TimeLimit(BaseException):
    """An answer that took too long; no `except Exception` of the answer catches it."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TimeLimit` inside after `seconds` of work, or three times that by the clock.

    A busy machine makes a right answer slow by the clock; only sleeping ones do no work meanwhile.
    """

    def stop(number: int, frame: Any) -> None:
        raise TimeLimit

    timers = (
        (signal.SIGPROF, signal.ITIMER_PROF, seconds),
        (signal.SIGALRM, signal.ITIMER_REAL, 3 * seconds),
    )
    before = [signal.signal(number, stop) for number, _, _ in timers]
    for _, timer, limit in timers:
        signal.setitimer(timer, limit, 0.5)  # again and again, for code that swallows it
    try:
        yield
    finally:
        for (number, timer, _), handler in zip(timers, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)


class Capped:
    """A text stream that keeps the beginning of what is printed."""

    def __init__(self, most: int = 2000) -> None:
        self.text, self.most = "", most

    def write(self, text: str) -> int:
        if len(self.text) < self.most:
            self.text += text[: self.most - len(self.text)]
        return len(text)

    def flush(self) -> None:
        """Nothing waits."""

    def isatty(self) -> bool:
        return False


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


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of nested lists, tuples and dicts, with where it stands: "0", "1.hidden"."""
    if isinstance(tree, list | tuple):
        for index, item in enumerate(tree):
            yield from leaves(item, f"{path}.{index}" if path else str(index))
    elif isinstance(tree, dict):
        for key, item in tree.items():
            yield from leaves(item, f"{path}.{key}" if path else str(key))
    else:
        yield path, tree


def mapped(tree: Any, change: Callable[[Any], Any]) -> Any:
    """The tree with `change` applied to each leaf."""
    if isinstance(tree, tuple):
        return tuple(mapped(item, change) for item in tree)
    if isinstance(tree, list):
        return [mapped(item, change) for item in tree]
    if isinstance(tree, dict):
        if set(tree) == {"__code__"}:
            return change(tree)
        return {key: mapped(item, change) for key, item in tree.items()}
    return change(tree)


def failure(error: BaseException, kind: str = "error") -> dict[str, Any]:
    """What is told of an exception: its type, its message and the answer's own line."""
    where, line = "", ""
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.startswith("<answer"):
            where = f"{frame.filename[8:-1]}line {frame.lineno}"
            line = frame.line or ""
    if isinstance(error, TimeLimit):
        kind = "time"
    return {
        "kind": kind,
        "type": type(error).__name__,
        "message": str(error)[:500],
        "where": where,
        "line": line[:200],
    }


def packed(value: Any) -> Any:
    """The value as what can be sent: tensors, numbers, strings, None, and nests of them."""

    def leaf(item: Any) -> Any:
        if isinstance(item, Tensor):
            if item.device.type == "meta":
                return {"__meta__": [list(item.shape), str(item.dtype).removeprefix("torch.")]}
            if item.numel() > MOST_NUMBERS_OUT:
                return {"__object__": f"a tensor of shape {tuple(item.shape)}, too large to compare"}
            return item.detach()
        if item is None or type(item) in (bool, int, float, str):
            return item
        if type(item).__module__ == "numpy":
            with contextlib.suppress(TypeError, ValueError):
                return torch.as_tensor(item)
        if isinstance(item, int | float):
            return float(item)
        return {"__object__": f"a {type(item).__name__}"}

    return mapped(value, leaf)


def _code(item: Any) -> Any:
    """The function that a `Code` stands for, anything else as it is."""
    return eval(item["__code__"], {"torch": torch}) if isinstance(item, dict) else item


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


class Answer:
    """A loaded answer: what its functions and classes are called with."""

    def __init__(self, subjects: dict[str, Any], drive: str, is_class: bool) -> None:
        self.subjects, self.is_class = subjects, is_class
        self.drive: Callable[..., Any] | None = None
        if drive:
            scope: dict[str, Any] = {"torch": torch}
            exec(compile(drive, "<drive>", "exec"), scope)
            self.drive = scope["drive"]

    def run(self, case: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
        """The outcome of one call, as a message."""
        torch.set_default_dtype(torch.float32)
        torch.set_grad_enabled(True)
        torch.manual_seed(run.get("seed", 0))
        inputs: list[Tensor] = []

        def prepared(item: Any) -> Any:
            if not isinstance(item, Tensor):
                return _code(item)
            item = item.clone()
            if run.get("dtype") and item.is_floating_point():
                item = item.to(getattr(torch, run["dtype"]))
            if run.get("strided"):
                item = _strided(item)
            if run.get("device"):
                item = item.to(run["device"])
            if run.get("cot") is not None and item.is_floating_point():
                item.requires_grad_(True)
            inputs.append(item)
            return item

        out: dict[str, Any] = {}
        try:
            target, module = self._target(case, run, out)
        except _Refused as refused:
            return {**out, "error": refused.told}
        args, kwargs = mapped(case["args"], prepared), mapped(case["kwargs"], prepared)
        before = [item.detach().clone() for item in inputs]
        largest = Largest()
        try:
            with contextlib.ExitStack() as watched:
                if run.get("largest"):
                    watched.enter_context(largest)
                if run.get("device"):
                    watched.enter_context(Elsewhere())  # type: ignore[no-untyped-call]
                if run.get("twice"):
                    with contextlib.suppress(Exception):  # what an answer keeps of other inputs must not show
                        target(*mapped(args, _other), **mapped(kwargs, _other))
                value = target(*args, **kwargs)
                again = target(*args, **kwargs) if run.get("twice") else None
        except BaseException as error:
            return {**out, "error": failure(error), "changed": _changed(before, inputs)}
        out |= {"value": packed(value), "changed": _changed(before, inputs), "largest": largest.numbers}
        if run.get("twice"):
            out["again"] = packed(again)
        if run.get("cot") is not None:
            try:
                out["grads"] = _gradients(value, run["cot"], inputs, module, case["weights"])
            except BaseException as error:
                out["error"] = failure(error, "gradient")
        return out

    def _target(self, case: dict[str, Any], run: dict[str, Any], out: dict[str, Any]) -> tuple[Any, Any]:
        """What is called, and the module it belongs to."""
        subject: Any = next(iter(self.subjects.values()))
        module = None
        if self.is_class:
            try:
                init, named = (mapped(case[key], _code) for key in ("init", "init_kwargs"))
                module = subject(*init, **named)
                if isinstance(module, nn.Module):
                    out["unfit"] = transfer(module, case["weights"])
                    if run.get("dtype"):
                        module.to(getattr(torch, run["dtype"]))
                    if run.get("device"):
                        module.to(run["device"])
                    module.train(case["train"])
                    module.forward = _renamed(module.forward)
            except BaseException as error:
                raise _Refused(failure(error, "construct")) from error
            subject = module
        elif len(self.subjects) > 1:
            subject = type(
                "Functions", (), {name: staticmethod(value) for name, value in self.subjects.items()}
            )
        if self.drive is not None:
            driven = self.drive
            return (lambda *args, **kwargs: driven(subject, *args, **kwargs)), module
        if case["call"]:
            if not hasattr(subject, case["call"]):
                raise _Refused(
                    {"kind": "missing", "type": "", "message": case["call"], "where": "", "line": ""}
                )
            return _renamed(getattr(subject, case["call"])), module
        if isinstance(subject, nn.Module):
            return subject, module
        return _renamed(subject if callable(subject) else subject.forward), module


class _Refused(Exception):
    """No call could be made; `told` says why."""

    def __init__(self, told: dict[str, Any]) -> None:
        super().__init__(told["message"])
        self.told = told


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
    value: Any, forms: list[dict[str, Tensor]], inputs: list[Tensor], module: Any, weights: dict[str, Tensor]
) -> dict[str, Any]:
    """Gradients of sum(output x cot) for each floating input and each weight, by its name."""
    total: Any = None
    cot = _fitting(value, forms)
    for path, leaf in leaves(value):
        if path in cot and isinstance(leaf, Tensor) and leaf.requires_grad and leaf.shape == cot[path].shape:
            term = (leaf * cot[path].to(leaf.dtype)).sum()
            total = term if total is None else total + term
    names = [f"input {index}" for index, item in enumerate(inputs) if item.requires_grad]
    wanted = [item for item in inputs if item.requires_grad]
    if isinstance(module, nn.Module):
        mine = dict(module.named_parameters())
        for name, parameter in fitted(mine, weights).items():
            names.append(name)
            wanted.append(parameter[0])
    if total is None:
        return dict.fromkeys(names)
    found = torch.autograd.grad(total, wanted, allow_unused=True)
    return {name: None if grad is None else grad.detach() for name, grad in zip(names, found, strict=True)}


def _fitting(value: Any, forms: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The factors of the form that the result has: a convention may change what is returned."""
    floating = {
        path: leaf.shape
        for path, leaf in leaves(value)
        if isinstance(leaf, Tensor) and leaf.is_floating_point()
    }
    same = (form for form in forms if {path: cot.shape for path, cot in form.items()} == floating)
    return next(same, forms[0])


def _plain(name: str) -> str:
    return name.lower().replace("_", "").removesuffix(".weight")


def fitted(mine: dict[str, Any], weights: dict[str, Tensor]) -> dict[str, tuple[Any, bool]]:
    """Our name -> (the answer's parameter, whether it is ours transposed), for all that can be told."""
    found: dict[str, tuple[Any, bool]] = {}
    left = dict(mine)

    def take(name: str, theirs: str) -> None:
        parameter = left.pop(theirs)
        # A bare parameter is used as x @ W, a linear layer holds the transpose.
        bare = name.endswith(".weight") and not theirs.endswith("weight") and parameter.dim() == 2
        found[name] = (parameter, bare)

    for name in weights:
        if name in left:
            take(name, name)
    for name in weights:
        near = [other for other in left if _plain(other) == _plain(name)]
        if name not in found and len(near) == 1:
            take(name, near[0])
    missing = [name for name in weights if name not in found]
    for name in missing:
        same = [other for other in left if left[other].shape == weights[name].shape]
        rivals = [other for other in missing if weights[other].shape == weights[name].shape]
        if len(same) == 1 and len(rivals) == 1:
            take(name, same[0])
    return found


def transfer(module: nn.Module, weights: dict[str, Tensor]) -> dict[str, list[str]] | None:
    """Copy the weights into the module; None when all fit, else what is left over on both sides.

    Biases without a counterpart are set to zero, as if they were not there.
    """
    for prefix, part in module.named_modules():
        lazy = getattr(part, "has_uninitialized_params", None)
        name = f"{prefix}.weight" if prefix else "weight"
        if lazy is not None and lazy() and name in weights:
            part.initialize_parameters(torch.empty(1, weights[name].shape[-1]))
    mine = {
        name: parameter
        for name, parameter in module.named_parameters()
        if not isinstance(parameter, nn.parameter.UninitializedParameter)
    }
    pairs = fitted(mine, weights)
    wrong = []
    with torch.no_grad():
        for name, (parameter, transposed) in pairs.items():
            value = weights[name].T if transposed else weights[name]
            if parameter.shape == value.shape:
                parameter.copy_(value)
            else:
                wrong.append(name)
        taken = {id(parameter) for parameter, _ in pairs.values()}
        extra = [name for name, parameter in mine.items() if id(parameter) not in taken]
        zeroed = [name for name in extra if name.endswith("bias")]
        for name in zeroed:
            mine[name].zero_()
    ours = [name for name in weights if name not in pairs or name in wrong]
    shapes = {id(parameter): name for name, parameter in mine.items()}
    theirs = [
        *(name for name in extra if name not in zeroed),
        *(shapes[id(pairs[name][0])] for name in wrong),
    ]
    if not ours and not theirs and not zeroed:
        return None
    return {
        "ours": [f"{name} {tuple(weights[name].shape)}" for name in ours],
        "yours": [f"{name} {tuple(mine[name].shape)}" for name in theirs],
        "zeroed": zeroed,
    }


def work(job: dict[str, Any], send: Send) -> None:
    """Load each answer of the job and make its runs, sending each outcome as it is known."""
    loader: Any = sys.modules["_answer_loader"]  # as the zygote loaded it
    stdout = sys.stdout
    for number, answer in enumerate(job["answers"]):
        printed = Capped()
        sys.stdout = sys.stderr = printed
        loaded = loader.load(answer, lambda told, number=number: send({"answer": number, **told}))
        send({"answer": number, "loaded": loaded.report})
        if loaded.subjects is None:
            continue
        subject = Answer(loaded.subjects, answer.get("drive", ""), answer["is_class"])
        timeouts = 0
        for run in job["runs"]:
            if timeouts >= MOST_TIMEOUTS:
                send({"answer": number, "run": run["id"], "error": {"kind": "not run"}})
                continue
            case = job["cases"][run["case"]]
            watcher = loader.comment_watcher(answer, loaded) if run.get("comments") else None
            try:
                with time_limit(job["seconds"]), watcher or contextlib.nullcontext():
                    outcome = subject.run(copy.copy(case), run)
            except BaseException as error:
                outcome = {"error": failure(error)}
            if watcher is not None:
                outcome["comments"] = watcher.seen()
            if outcome.get("error", {}).get("kind") == "time":
                timeouts += 1
            send({"answer": number, "run": run["id"], **outcome})
        send({"answer": number, "printed": printed.text})
    sys.stdout = stdout
