"""One process or many: the same training, under `torchrun` with PyTorch's DDP or FSDP2.

Every process builds every batch, which is cheap, and takes its rows of it. The loss is divided by the labels
of the whole batch, so the summed gradient is that of one process, whatever the number of processes.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from regard.errors import RegardError
from regard.layers.block import Block
from regard.train.settings import Settings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class World:
    """This process among those that train together."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes and speaks for all."""
        return self.rank == 0

    def total(self, value: float) -> float:
        """Return the sum of all processes' values."""
        if self.size == 1:
            return value
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        box = torch.tensor([value], dtype=torch.float64, device=device)
        dist.all_reduce(box)
        return float(box)

    def from_first(self, value: T) -> T:
        """Return what the first process has, for all."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def by_first(self, action: Callable[[], object]) -> None:
        """Let the first process do it; if it fails, every process raises its error."""
        problem: Exception | None = None
        try:
            if self.first:
                action()
        except (RegardError, SafetensorError, OSError) as error:
            problem = error
        if (problem := self.from_first(problem)) is not None:
            raise problem


def here() -> World:
    """Return this process's place among those that torchrun started, or a world of one."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    return World(int(os.environ["RANK"]), size) if size > 1 else World()


@contextmanager
def joined(settings: Settings) -> Iterator[World]:
    """Return the world that torchrun set up, or a world of one."""
    world = here()
    if world.size == 1:
        yield world
        return
    cuda = settings.device.startswith("cuda")
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))  # what "cuda" means from here on
    dist.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(minutes=30))
    try:
        yield world
    finally:
        dist.destroy_process_group()


def wrapped(objective: nn.Module, settings: Settings, world: World) -> nn.Module:
    """Return the objective, whose gradients are the mean over all processes."""
    if world.size == 1:
        return objective
    if settings.sharding == "ddp":
        return DistributedDataParallel(objective)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cuda" if settings.device.startswith("cuda") else "cpu", (world.size,))
    for module in [*(part for part in objective.modules() if isinstance(part, Block)), objective]:
        fully_shard(module, mesh=mesh)
    return objective


def without_sync(module: nn.Module, last: bool) -> AbstractContextManager[None]:
    """Keep gradients local until the last batch of an update; FSDP's shards need each one."""
    if isinstance(module, DistributedDataParallel) and not last:
        return module.no_sync()
    return nullcontext()


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor, its parts gathered where it is sharded: every process must ask."""
    # Only a sharded tensor can do this; importing its class to ask would take longer than asking.
    full: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full.detach()


def as_held(full: Tensor, parameter: Tensor) -> Tensor:
    """Return this process's part of a whole tensor, laid out as `parameter` is."""
    full = full.to(device=parameter.device, dtype=full.dtype)
    if not hasattr(parameter, "full_tensor"):
        return full
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(parameter, DTensor)
    return distribute_tensor(full, parameter.device_mesh, parameter.placements)
