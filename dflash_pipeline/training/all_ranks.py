"""What one step was like on every rank: each rank's own measure, and what they come to together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import psutil
import torch

from dflash_pipeline.training.collate import PreparedBatch
from dflash_pipeline.training.distributed import Ranks
from dflash_pipeline.training.step_clock import StepTimes


@dataclass(frozen=True, kw_only=True, slots=True)
class RankMeasure:
    """One rank's share of one step."""

    data_wait: float
    """Seconds."""
    times: StepTimes
    real_tokens: int
    """Without those of fillers."""
    memory_bytes: int
    operations: float
    """NaN where no peak is known to compare them with."""

    def as_row(self) -> list[float]:
        times = self.times
        parts = [times.target, times.drafter, times.backward, times.communication, times.optimizer]
        return [self.data_wait, *parts, float(self.real_tokens), float(self.memory_bytes), self.operations]

    @classmethod
    def of_row(cls, row: Sequence[float]) -> RankMeasure:
        data_wait, target, drafter, backward, communication, optimizer, tokens, memory, operations = row
        return cls(
            data_wait=data_wait,
            times=StepTimes(
                target=target,
                drafter=drafter,
                backward=backward,
                communication=communication,
                optimizer=optimizer,
            ),
            real_tokens=int(tokens),
            memory_bytes=int(memory),
            operations=operations,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class StepMeasure:
    """One step by rank, in order of ranks."""

    ranks: tuple[RankMeasure, ...]
    peak_operations: float
    """Of one rank's device in a second; NaN where unknown."""

    def mean_times(self) -> StepTimes:
        """Each part's mean over ranks."""
        times = [measure.times for measure in self.ranks]
        return StepTimes(
            target=_mean([t.target for t in times]),
            drafter=_mean([t.drafter for t in times]),
            backward=_mean([t.backward for t in times]),
            communication=_mean([t.communication for t in times]),
            optimizer=_mean([t.optimizer for t in times]),
        )

    @property
    def mean_data_wait(self) -> float:
        return _mean([measure.data_wait for measure in self.ranks])

    @property
    def memory_bytes(self) -> int:
        """Of the rank that holds most."""
        return max(measure.memory_bytes for measure in self.ranks)

    def peak_share(self, seconds: float) -> float:
        """Of what all devices could have computed in the step's seconds; NaN where that is not known."""
        possible = self.peak_operations * seconds * len(self.ranks)
        return math.fsum(m.operations for m in self.ranks) / possible if possible > 0 else math.nan


def measure_step(ranks: Ranks, mine: RankMeasure, *, peak_operations: float) -> StepMeasure:
    """Every rank's measure, on every rank: one exchange between hosts, where the next step would begin with one."""
    rows = ranks.rows(mine.as_row())
    return StepMeasure(ranks=tuple(RankMeasure.of_row(row) for row in rows), peak_operations=peak_operations)


def real_tokens(batches: Sequence[PreparedBatch]) -> int:
    return sum(prepared.source.num_tokens for prepared in batches if not prepared.source.filler)


def memory_in_use(device: torch.device) -> int:
    """Bytes: allocated at the peak so far on CUDA, resident now on a CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else psutil.Process().memory_info().rss


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
