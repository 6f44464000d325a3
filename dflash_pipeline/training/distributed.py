"""The process group, as one small object. Gloo on CPU, NCCL on CUDA."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dflash_pipeline.contracts.errors import Refused


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """This process among the ranks of a run."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def share_of(self, slots_per_step: int) -> range:
        """The slots this rank runs in every step: rank, rank + world size, …"""
        return range(self.rank, slots_per_step, self.world_size)

    def sum(self, values: Sequence[float]) -> list[float]:
        """Sums over all ranks, in float64. Every rank must call it, and gets the same answer.

        Of numbers on the host: they go from host to host, and no device is waited for.
        """
        return self.total(torch.tensor(values, dtype=torch.float64)).tolist()

    def total(self, tensor: Tensor) -> Tensor:
        """In place, the sum over all ranks, where the tensor is. Every rank must call it."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def rows(self, values: Sequence[float]) -> list[list[float]]:
        """Each rank's values, in order of ranks, in float64. Every rank must call it, with as many."""
        table = torch.zeros(self.world_size, len(values), dtype=torch.float64)
        table[self.rank] = torch.tensor(values, dtype=torch.float64)
        return self.total(table).tolist()

    def wait_for_all(self) -> None:
        if self.world_size > 1:
            dist.barrier()

    def parallel(self, model: nn.Module) -> nn.Module:
        """The model with gradients averaged over ranks during backward."""
        if self.world_size == 1:
            return model
        return DistributedDataParallel(model, forward_sync_buffers=False, gradient_as_bucket_view=True)


def without_sync(model: nn.Module, *, skip: bool) -> AbstractContextManager[None]:
    """Keep gradients local for this backward: all micro-batches of a step but the last."""
    return model.no_sync() if skip and isinstance(model, DistributedDataParallel) else nullcontext()


@contextmanager
def process_group(*, rank: int, local_rank: int, world_size: int, device: str) -> Iterator[Ranks]:
    """Join the ranks that torchrun started; leave the group at the end (gloo's only when the process ends)."""
    check_device(device)
    here = torch.device("cuda", local_rank) if device == "cuda" else torch.device("cpu")
    if device == "cuda":
        torch.cuda.set_device(here)
    if world_size == 1:
        yield Ranks(rank=0, world_size=1, device=here)
        return
    dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
    try:
        yield Ranks(rank=rank, world_size=world_size, device=here)
    finally:
        if device == "cuda":
            dist.destroy_process_group()  # Not gloo's: it can deadlock, see `launch.leaving`.


def check_device(device: str) -> None:
    """Refuse, before any work, a device that this machine does not have."""
    if device == "cuda" and not torch.cuda.is_available():
        raise Refused(
            "no CUDA device is visible", where="training.device", fix="set training.device: cpu, or use a GPU node"
        )


def check_world_size(world_size: int, slots_per_step: int) -> None:
    """Refuse, before any work, a number of ranks that cannot share a step evenly."""
    if slots_per_step % world_size:
        divisors = [n for n in range(1, slots_per_step + 1) if slots_per_step % n == 0]
        raise Refused(
            f"{world_size} ranks cannot share {slots_per_step} slots evenly",
            where="training.num_ranks",
            fix=f"use one of {divisors}",
        )
