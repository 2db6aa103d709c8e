"""One update after another.

Everything that happens in an update is a function of its number: the learning rate, the random numbers of
dropout and the place in the data follow from `TrainingProgress`, which a checkpoint holds whole. So a run
that is killed and resumed ends with the bits of a run that was not.
"""

import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import current_thread, main_thread
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import TrainError
from regard.train.batches import Batches, DataPosition
from regard.train.build import Objective
from regard.train.distributed import World, as_held, whole, without_sync, wrapped
from regard.train.settings import Settings

MOMENTS = ("exp_avg", "exp_avg_sq")  # what AdamW remembers of each weight, beside its steps


@dataclass(slots=True)
class TrainingProgress:
    """How far training is; all of it is in a checkpoint."""

    step: int = 0
    window: int = 0
    batch: int = 0
    n_token: int = 0
    # Score, step and file of models, the best first: larger scores are better, compared part by part.
    kept: list[dict[str, Any]] = field(default_factory=list)
    metrics_bytes: int = 0  # how long metrics.jsonl is
    seconds: float = 0.0
    over: str = ""  # why training ended before its last step


def learning_rate(step: int, settings: Settings) -> float:
    """Return the learning rate of an update, the first being 1: a rise to lr, then the schedule.

    >>> settings = Settings.of("dates", {"lr": 1.0, "warmup": 4, "steps": 12, "schedule": "cosine"})
    >>> [round(learning_rate(step, settings), 3) for step in (1, 4, 8, 12)]
    [0.25, 1.0, 0.5, 0.0]
    """
    warmup = min(settings.warmup, settings.steps - 1)
    if step < warmup:
        return settings.lr * step / warmup
    if settings.schedule == "constant":
        return settings.lr
    if settings.schedule == "inverse_sqrt":  # Vaswani et al. 2017, eq. 3, with its peak at lr
        return settings.lr * math.sqrt(max(warmup, 1) / step)
    part = (step - warmup) / max(1, settings.steps - warmup)
    return settings.lr * (settings.min_lr + (1 - settings.min_lr) * 0.5 * (1 + math.cos(math.pi * part)))


def make_optimizer(module: nn.Module, settings: Settings, *, fused: bool) -> torch.optim.AdamW:
    """Return AdamW that decays matrices, not biases and norms (Loshchilov and Hutter 2019)."""
    parameters = list(module.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    betas = (settings.beta1, settings.beta2)
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=settings.lr, betas=betas, eps=1e-8, fused=fused)


class Training:
    """A model being trained: `update` is one step, `tensors` and `restore` are what a checkpoint holds."""

    def __init__(
        self, objective: Objective, batches: Batches, settings: Settings, world: World, device: torch.device
    ) -> None:
        self.settings, self.world, self.device, self.batches = settings, world, device, batches
        self.objective = objective.to(device).train()
        self.module = wrapped(self.objective, settings, world)
        if settings.compile:
            self.module = torch.compile(self.module)  # type: ignore[assignment]
        sharded = world.size > 1 and settings.sharding == "fsdp"
        self.fused = not sharded and device.type in ("cpu", "cuda")
        self.optimizer = make_optimizer(self.objective, settings, fused=self.fused)
        self.progress = TrainingProgress()
        half = settings.precision == "bf16" or (
            settings.precision == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported()
        )
        self.autocast = torch.autocast(device.type, torch.bfloat16, enabled=half)

    def update(self) -> dict[str, float]:
        """Make one update; return its loss, the gradient norm and the learning rate."""
        progress, settings, world = self.progress, self.settings, self.world
        step = progress.step + 1
        place = DataPosition(progress.window, progress.batch)
        batches = []
        for _ in range(settings.accumulate):
            batch, place = self.batches.at(place)
            batches.append(batch)
        n_label = sum(batch.n_label for batch in batches)
        # Dropout's random numbers are the step's own, so that there is no state of them to lose.
        # torch.manual_seed sees to every kind of device there could be, which takes a while.
        random = torch.default_generator if self.device.type == "cpu" else torch
        random.manual_seed((settings.seed * 1_000_003 + step) * 1_009 + world.rank)
        self.optimizer.zero_grad(set_to_none=True)
        loss = 0.0
        for index, batch in enumerate(batches):
            mine = batch.part(world.rank, world.size).to(self.device)
            with without_sync(self.module, last=index + 1 == len(batches)):
                with self.autocast:
                    summed = self.module(*mine)
                # The mean over processes times their number is the sum: the gradient of the whole batch.
                (summed * (world.size / n_label)).backward()
            loss += float(summed.detach()) / n_label
        norm = whole(nn.utils.clip_grad_norm_(self.objective.parameters(), settings.clip or math.inf))
        loss, length = world.total(loss), float(norm)
        if not (math.isfinite(loss) and math.isfinite(length)):
            raise TrainError(
                f"the loss of step {step} is {loss} and its gradient's length {length}: "
                "training cannot go on. "
                f"The weights were not changed by it. A lower lr (now {settings.lr}), a longer warmup "
                f"({settings.warmup}) or a smaller clip ({settings.clip}) usually helps."
            )
        lr = learning_rate(step, settings)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        progress.step, progress.window, progress.batch = step, place.window, place.batch
        read = [part for batch in batches for part in (batch.source, batch.inputs)]
        n_token = sum(part.numel() for part in read if part is not None)
        progress.n_token += n_token
        return {"loss": loss, "gradient": length, "lr": lr, "tokens": float(n_token)}

    def weights(self) -> dict[str, Tensor]:
        """Return the model's weights, whole; every process must ask."""
        return {name: whole(parameter).cpu() for name, parameter in self.objective.model.named_parameters()}

    def tensors(self) -> dict[str, Tensor]:
        """Return weights and moments, whole, by name; every process must ask."""
        named = dict(self.objective.model.named_parameters())
        held = {f"model.{name}": parameter.detach() for name, parameter in named.items()}
        for name, parameter in named.items():
            state = self.optimizer.state.get(parameter, {})
            held |= {f"{moment}.{name}": state[moment] for moment in state}
        return {name: whole(tensor).cpu().contiguous() for name, tensor in held.items()}

    @torch.no_grad()
    def restore(self, tensors: dict[str, Tensor], progress: dict[str, Any]) -> None:
        """Resume where `tensors` and `progress` were taken, in this number of processes or another."""
        for name, parameter in self.objective.model.named_parameters():
            stored = tensors.get(f"model.{name}")
            if stored is None or stored.shape != parameter.shape:
                raise TrainError(
                    f"the checkpoint does not fit the run's config: {name} must be {tuple(parameter.shape)}. "
                    f"Got {'nothing' if stored is None else tuple(stored.shape)}."
                )
            parameter.copy_(as_held(stored, parameter))
            if f"step.{name}" in tensors:
                moments = {moment: as_held(tensors[f"{moment}.{name}"], parameter) for moment in MOMENTS}
                moments["step"] = tensors[f"step.{name}"].to(self.device if self.fused else "cpu")
                self.optimizer.state[parameter] = moments
        self.progress = TrainingProgress(**progress)


@contextmanager
def stoppable() -> Iterator[list[str]]:
    """Stop after the current update on Ctrl-C or SIGTERM; a second signal stops at once.

    The names of the signals that came are in the list.
    """
    asked: list[str] = []

    def ask(number: int, frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(signal.Signals(number).name)

    # Signals belong to the main thread.
    numbers = [signal.SIGINT, signal.SIGTERM] if current_thread() is main_thread() else []
    before = {number: signal.signal(number, ask) for number in numbers}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
