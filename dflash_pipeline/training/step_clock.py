"""Where a step's time goes on this rank: laps of one stopwatch, so that the parts never add up to more than the step.

On a CPU laps are read from a clock that never goes back. On CUDA they are events on the stream, read when the step has
waited for the device anyway: timing adds no wait of its own.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

Part = Literal["target", "drafter", "backward", "communication", "optimizer"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTimes:
    """Seconds of one step on one rank."""

    target: float = 0.0
    """The target's forward."""
    drafter: float = 0.0
    """The drafter's forward and the loss."""
    backward: float = 0.0
    communication: float = 0.0
    """Collectives, as far as the rank stood waiting for them: what backward hides of them is not in it. With sharded
    weights, gathering and scattering inside forward and backward count as those."""
    optimizer: float = 0.0
    """Clipping and update. On CUDA the update is that of the step before: this step's is still on its way."""

    @property
    def busy(self) -> float:
        """Without waiting for others."""
        return self.target + self.drafter + self.backward + self.optimizer


class StepClock(Protocol):
    """`start`, then laps in order, then `take`, once a step each."""

    def start(self) -> None: ...

    def lap(self, part: Part) -> None:
        """What passed since the lap before was this part."""
        ...

    def note_gradient(self) -> None:
        """One more gradient is complete on this rank."""
        ...

    def lap_backward(self) -> None:
        """A backward ends here that sums gradients over ranks: after its last gradient it only waited."""
        ...

    def waited(self) -> None:
        """The host has waited for the device: every lap so far can be read."""
        ...

    def take(self) -> StepTimes: ...


class NoClock:
    """For a step that nobody times."""

    def start(self) -> None:
        pass

    def lap(self, part: Part) -> None:
        pass

    def note_gradient(self) -> None:
        pass

    def lap_backward(self) -> None:
        pass

    def waited(self) -> None:
        pass

    def take(self) -> StepTimes:
        return StepTimes()


UNTIMED = NoClock()


class HostClock:
    """Where every operation is done when its call returns."""

    def __init__(self) -> None:
        self._seconds: dict[Part, float] = {}
        self._last = self._gradient = 0.0

    def start(self) -> None:
        self._last = self._gradient = time.perf_counter()

    def lap(self, part: Part) -> None:
        self._lap(part, time.perf_counter())

    def note_gradient(self) -> None:
        self._gradient = time.perf_counter()

    def lap_backward(self) -> None:
        now = time.perf_counter()
        self._lap("backward", self._gradient)
        self._lap("communication", now)

    def waited(self) -> None:
        pass

    def take(self) -> StepTimes:
        times = StepTimes(**self._seconds)
        self._seconds = {}
        return times

    def _lap(self, part: Part, now: float) -> None:
        self._seconds[part] = self._seconds.get(part, 0.0) + now - self._last
        self._last = self._gradient = now


class DeviceClock:
    """On CUDA. Laps after `waited` are the next step's: reading them now would be waiting once more."""

    def __init__(self) -> None:
        self._laps: list[tuple[Part, torch.cuda.Event, torch.cuda.Event]] = []
        self._last = self._gradient = _event()
        self._num_due = 0

    def start(self) -> None:
        self._last = self._gradient = _event()

    def lap(self, part: Part) -> None:
        self._lap(part, _event())

    def note_gradient(self) -> None:
        self._gradient = _event()

    def lap_backward(self) -> None:
        now = _event()
        self._lap("backward", self._gradient)
        self._lap("communication", now)

    def waited(self) -> None:
        self._num_due = len(self._laps)

    def take(self) -> StepTimes:
        due, self._laps = self._laps[: self._num_due], self._laps[self._num_due :]
        self._num_due = 0
        seconds: dict[Part, float] = {}
        for part, since, until in due:
            seconds[part] = seconds.get(part, 0.0) + since.elapsed_time(until) / 1000
        return StepTimes(**seconds)

    def _lap(self, part: Part, now: torch.cuda.Event) -> None:
        self._laps.append((part, self._last, now))
        self._last = self._gradient = now


def clock_of(device: torch.device) -> HostClock | DeviceClock:
    return DeviceClock() if device.type == "cuda" else HostClock()


def watch_gradients(model: nn.Module, clock: StepClock) -> None:
    """Notes every gradient of a model whose gradients are summed over ranks; its hooks stay for good."""
    if isinstance(model, DistributedDataParallel):
        # Such a hook runs before DistributedDataParallel's own, which sends the last bucket and waits for all of them.
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(lambda _parameter: clock.note_gradient())


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
