"""Records what an answer does: the shapes around commented lines, a softmax of probabilities."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .messages import SeenShapes, ShapeNote

MOST_SEEN = 2000


class SoftmaxWatch(TorchDispatchMode):
    """Notes the lines of an answer that take the softmax of rows which are probabilities already."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lines: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._softmax.default and _probabilities(args[0], args[1]):
            frame: FrameType | None = sys._getframe()
            while frame is not None and not frame.f_code.co_filename.startswith("<answer"):
                frame = frame.f_back
            if frame is not None:
                line = f"{frame.f_code.co_filename[8:-1]}line {frame.f_lineno}"
                self.lines += [line] if line not in self.lines else []
        return func(*args, **(kwargs or {}))


def _probabilities(values: torch.Tensor, dim: int) -> bool:
    """Return whether rows of at least two numbers are 0 or more and sum to 1."""
    if values.dim() == 0 or values.device.type == "meta" or not values.numel() or values.shape[dim] < 2:
        return False
    sums = values.double().sum(dim)
    return bool((values >= 0).all()) and bool(((sums - 1).abs() < 1e-4).all())


@contextmanager
def watched(notes: list[ShapeNote]) -> Iterator[list[SeenShapes]]:
    """A list that gets, each time a commented line runs inside, the shapes before and after it."""
    at = {(f"<answer {note.label}>", note.start): index for index, note in enumerate(notes)}
    files = {file for file, _ in at}
    records: list[SeenShapes] = []
    calls = count(1)

    def called(frame: FrameType, event: str, argument: Any) -> Any:
        """What follows a call of a function of the answer, line by line."""
        file = frame.f_code.co_filename
        if file not in files:
            return None
        call = next(calls)
        running: list[tuple[int, dict[str, list[int] | None]]] = []  # the commented line that is being run

        def follow(frame: FrameType, event: str, argument: Any) -> Any:
            for index, before in running:
                target = notes[index].target
                value = argument if not target and event == "return" else _lookup(frame, target)
                if event != "exception" and len(records) < MOST_SEEN:
                    records.append(SeenShapes(index, call, before, _shape(value)))
            running.clear()
            if event == "line" and (index := at.get((file, frame.f_lineno), -1)) >= 0:
                running.append((index, {name: _shape(_lookup(frame, name)) for name in notes[index].loads}))
            return follow

        return follow

    before = sys.gettrace()
    if notes:
        sys.settrace(called)
    try:
        yield records
    finally:
        sys.settrace(before)


def _lookup(frame: FrameType, name: str) -> Any:
    head, *rest = name.split(".")
    value = frame.f_locals.get(head)
    for part in rest:
        value = getattr(value, part, None)
    return value


def _shape(value: Any) -> list[int] | None:
    try:
        return [int(size) for size in value.shape]
    except (AttributeError, TypeError, ValueError):
        return None
