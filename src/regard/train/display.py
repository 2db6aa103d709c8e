"""What is seen of a run: a live display, metrics as JSON lines and for TensorBoard, pictures at the end."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from regard.drawing.figures import curves, heat_map, save_figure
from regard.files.loading import Loaded
from regard.layers.layer_id import LayerId
from regard.tracing.take import trace
from regard.train.settings import Settings

_LEGIBLE = 60  # characters of a sample shown on one line


class Display:
    """Progress, loss, speed and time left, live on a terminal and as lines elsewhere; lines of scores.

    All figures go into metrics.jsonl as well, and into TensorBoard's files where it is installed. Of several
    processes the `first` alone shows and writes; of metrics, `length` bytes and `start` steps are there.
    """

    def __init__(
        self, folder: Path, settings: Settings, *, first: bool, quiet: bool, start: int, length: int
    ) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self.settings, self.start, self.board = settings, start, None
        self.console = Console(stderr=True, highlight=False, quiet=quiet or not first)
        self.live = self.console.is_terminal and not self.console.quiet
        said = TextColumn("{task.description}", markup=False)
        self.bar = Progress(BarColumn(), said, console=self.console, transient=True, disable=not self.live)
        self.task = self.bar.add_task(f"regard train {settings.task}", total=settings.steps, completed=start)
        self.began, self.tokens = time.monotonic(), 0.0
        self.path = folder / "metrics.jsonl" if first else Path(os.devnull)
        self.file = self.path.open("a", encoding="utf-8")
        if not first:
            return
        # Lines written after the checkpoint a run resumes from are written again.
        os.truncate(self.path, min(length, self.length))
        if settings.tensorboard:
            try:
                from torch.utils.tensorboard import SummaryWriter

                self.board = SummaryWriter(folder / "tensorboard", purge_step=start + 1)
            except ImportError:
                self.note(
                    "TensorBoard is not installed (pip install 'regard[train]'): metrics.jsonl has all."
                )

    def __enter__(self) -> Display:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()
        self.file.close()
        if self.board is not None:
            self.board.close()

    @property
    def length(self) -> int:
        """How long metrics.jsonl is, in bytes."""
        return self.path.stat().st_size

    def write(self, step: int, kind: str, values: Mapping[str, Any]) -> None:
        """Write one line of metrics."""
        self.file.write(json.dumps({"step": step, "kind": kind, **values}) + "\n")
        self.file.flush()  # for whoever watches the file
        for name, value in values.items():
            if self.board is not None and isinstance(value, int | float):
                self.board.add_scalar(f"{kind}/{name}", value, step)

    def step(self, step: int, measured: Mapping[str, float]) -> None:
        """Show an update."""
        self.tokens += measured["tokens"]
        spent = max(time.monotonic() - self.began, 1e-9)
        left = spent / max(1, step - self.start) * (self.settings.steps - step)
        said = (
            f"step {step}/{self.settings.steps}  loss {measured['loss']:.4f}  lr {measured['lr']:.2e}  "
            f"{self.tokens / spent:,.0f} tokens/s  {timedelta(seconds=round(left))} left"
        )
        if self.live:
            self.bar.update(self.task, completed=step, description=said)
        elif step % (10 * self.settings.log_every) == 0:
            self.note(said)
        if step % self.settings.log_every == 0 or step == 1:
            self.write(step, "train", measured)

    def evaluated(self, step: int, values: Mapping[str, Any], sample: tuple[str, str, str] | None) -> None:
        """Show an evaluation."""
        self.write(step, "valid", values)
        self.note(f"step {step}  {figures(values)}")
        if sample is not None:
            source, target, answer = (
                text if len(text) <= _LEGIBLE else text[: _LEGIBLE - 1] + "…" for text in sample
            )
            mark = " (right)" if answer == target else f" (should be {target})"
            self.note(f"    {source} -> {answer}{mark if target else ''}".replace("\n", " "))

    def note(self, text: str) -> None:
        """Print a line that stays."""
        self.console.print(text, markup=False, soft_wrap=True)


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl; one that is damaged is left out."""
    rows = []
    for line in Path(path).read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and type(row.get("step")) is int and isinstance(row.get("kind"), str):
            rows.append(row)
    return rows


def loss_curve(metrics: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the loss by step as a PNG: training, and validation where it was evaluated."""
    lines = {}
    for kind, name in (("train", "training"), ("valid", "held out")):
        points = [
            (float(row["step"]), float(row["loss"]))
            for row in metrics
            if row["kind"] == kind and isinstance(row.get("loss"), int | float)
        ]
        if points:
            steps, losses = zip(*points, strict=True)
            lines[name] = (steps, losses)
    if lines:
        curves(lines, x_label="step", y_label="loss (nats a token)").savefig(path)


def alignment_maps(loaded: Loaded, pairs: Sequence[tuple[str, str]], folder: Path) -> None:
    """Draw a heat map for each (source, answer): the source along the bottom, the answer along the side."""
    cross = [
        layer
        for layer, name in enumerate(loaded.model.attention_names)
        if LayerId.parse(name).kind == "cross"
    ]
    if not cross:
        return
    for index, (source, answer) in enumerate(pairs, 1):
        alignment = trace(loaded, source, target=answer)
        n_head = loaded.model.sizes.n_head
        weights = torch.stack([alignment.weights(cross[-1], head) for head in range(n_head)]).mean(0)
        # A row's query has read the word before; it is named by the word that is written from it.
        title = source if n_head == 1 else f"{source} (last layer, mean of {n_head} heads)"
        figure = heat_map(weights[:-1], alignment.tokens[0][1:], alignment.source_tokens[0], title=title)
        save_figure(figure, folder / f"alignment-{index}.png")


def figures(values: Mapping[str, Any]) -> str:
    """Return the numbers among `values`, on one line."""
    return "  ".join(f"{name} {value:.4f}" for name, value in values.items() if isinstance(value, float))
