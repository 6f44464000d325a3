"""Serves one rank's share of one epoch, prepared ahead in a thread. Built from a manifest, used once, thrown away."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dflash_pipeline.contracts.errors import ContractBroken
from dflash_pipeline.contracts.manifest import EpochManifest, MicroBatch
from dflash_pipeline.contracts.plan import Position
from dflash_pipeline.training.collate import PreparedBatch

STEPS_AHEAD = 4


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PreparedStep:
    """This rank's micro-batches of one step."""

    step: int
    batches: tuple[PreparedBatch, ...]
    wait_seconds: float
    """How long the training thread stood waiting for it."""


class EpochLoader:
    """Steps `at.step … num_steps - 1` of one epoch, for one rank, once.

    It has no length and no `set_epoch`: another epoch, another position or another pass is another loader. Order and
    content come from the manifest alone; a failure while preparing is raised where the step is taken.
    """

    __slots__ = ("_collate", "_first_step", "_manifest", "_slots", "_taken")

    def __init__(
        self,
        manifest: EpochManifest,
        *,
        at: Position,
        slots: range,
        collate: Callable[[MicroBatch], PreparedBatch],
    ) -> None:
        if at.epoch != manifest.epoch or at.step > manifest.num_steps:
            raise ContractBroken(
                f"position epoch {at.epoch} step {at.step} in a manifest of {manifest.num_steps} steps",
                where=f"epoch {manifest.epoch}",
                fix="build the loader from the manifest of the position's epoch",
            )
        self._manifest = manifest
        self._first_step = at.step
        self._slots = slots
        self._collate = collate
        self._taken = False

    def __iter__(self) -> Iterator[PreparedStep]:
        if self._taken:
            raise ContractBroken(
                "a loader serves its epoch once", where=f"epoch {self._manifest.epoch}", fix="build another loader"
            )
        self._taken = True
        return self._serve()

    def _serve(self) -> Iterator[PreparedStep]:
        ready: queue.Queue[tuple[PreparedBatch, ...] | BaseException] = queue.Queue(maxsize=STEPS_AHEAD)
        closed = threading.Event()
        worker = threading.Thread(target=self._prepare, args=(ready, closed), name="loader", daemon=True)
        worker.start()
        try:
            for step in range(self._first_step, self._manifest.num_steps):
                asked = time.perf_counter()
                batches = ready.get()
                if isinstance(batches, BaseException):
                    raise batches
                yield PreparedStep(step=step, batches=batches, wait_seconds=time.perf_counter() - asked)
        finally:
            closed.set()
            worker.join()

    def _prepare(self, ready: queue.Queue[tuple[PreparedBatch, ...] | BaseException], closed: threading.Event) -> None:
        try:
            for step in range(self._first_step, self._manifest.num_steps):
                batches = tuple(self._collate(self._manifest.micro_batch(step, slot)) for slot in self._slots)
                if not _put(ready, batches, closed):
                    return
        except BaseException as error:
            _put(ready, error, closed)


def _put(
    ready: queue.Queue[tuple[PreparedBatch, ...] | BaseException],
    item: tuple[PreparedBatch, ...] | BaseException,
    closed: threading.Event,
) -> bool:
    """Put unless the reader has gone; whether it was put."""
    while not closed.is_set():
        try:
            ready.put(item, timeout=0.1)
            return True
        except queue.Full:
            continue
    return False
