"""One epoch, decided before it starts: every micro-batch of every step. True for that epoch only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dflash_pipeline.contracts.batching import Layout
from dflash_pipeline.contracts.errors import ContractBroken
from dflash_pipeline.contracts.fingerprint import array_digest

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

COLUMNS: Mapping[str, type[np.generic]] = {
    "sample_ids": np.int64,
    "offsets": np.int64,
    "padded_length": np.int64,
    "num_tokens": np.int64,
    "supervised_tokens": np.int64,
    "cost": np.float64,
    "filler": np.bool_,
    "dropped": np.int64,
}
"""An epoch's columns and the type of each, in the order in which they are digested."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MicroBatch:
    """What one rank runs in one forward and backward: a view into its manifest."""

    epoch: int
    step: int
    slot: int
    sample_ids: Ints
    padded_length: int
    num_tokens: int
    supervised_tokens: int
    cost: float
    filler: bool
    layout: Layout = "rows"

    @property
    def padded_tokens(self) -> int:
        return self.padded_length * (1 if self.layout == "documents" else self.sample_ids.size)


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochSummary:
    """The one-row face of a manifest, for the plan and for tables."""

    epoch: int
    num_steps: int
    num_micro_batches: int
    """Real ones: fillers are counted by `num_fillers`."""
    num_fillers: int
    num_samples: int
    num_dropped: int
    real_tokens: int
    padded_tokens: int
    supervised_tokens: int
    cost: float
    digest: str
    """SHA-256 over the manifest's columns."""

    @property
    def padding_efficiency(self) -> float:
        """Real tokens / padded tokens, in (0, 1]."""
        return self.real_tokens / self.padded_tokens


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class EpochManifest:
    """Every micro-batch of one epoch, as columns; arrays are made read-only.

    Micro-batch m = step * slots_per_step + slot holds `sample_ids[offsets[m]:offsets[m + 1]]`. The per-batch columns
    have shape `[num_steps, slots_per_step]`. Construction checks, and names epoch, step and slot of what breaks it:
    every step full, none of fillers only, no micro-batch empty or above the budget, each sample of the corpus scheduled
    exactly once or listed as dropped, fillers flagged copies of scheduled samples.
    """

    epoch: int
    num_corpus_samples: int
    """Samples with ids `0 … num_corpus_samples - 1` are what scheduled and dropped must add up to."""
    slots_per_step: int
    token_budget: int
    layout: Layout = "rows"
    """`rows`: each sample a row of `padded_length`. `documents`: all samples of a micro-batch in one row of it."""
    sample_ids: Ints
    offsets: Ints
    padded_length: Ints
    num_tokens: Ints
    supervised_tokens: Ints
    cost: Floats
    filler: Flags
    dropped: Ints

    def __post_init__(self) -> None:
        for name in COLUMNS:
            column = getattr(self, name).view()
            column.setflags(write=False)
            object.__setattr__(self, name, column)
        self._check_shape()
        self._check_batches()
        self._check_every_sample_once()

    @property
    def num_steps(self) -> int:
        return int(self.padded_length.shape[0])

    @property
    def num_samples(self) -> int:
        """Samples scheduled, fillers aside."""
        return self.num_corpus_samples - int(self.dropped.size)

    @property
    def batch_sizes(self) -> Ints:
        """Samples of each micro-batch, shape `[num_steps, slots_per_step]`."""
        sizes: Ints = np.diff(self.offsets).reshape(self.padded_length.shape)
        return sizes

    @property
    def padded_tokens(self) -> Ints:
        """Padded tokens of each micro-batch, shape `[num_steps, slots_per_step]`."""
        return self.padded_length * self.num_rows

    @property
    def num_rows(self) -> Ints:
        """Rows of each micro-batch, shape `[num_steps, slots_per_step]`."""
        return np.ones_like(self.padded_length) if self.layout == "documents" else self.batch_sizes

    @property
    def step_costs(self) -> Floats:
        """Cost of each step over its real micro-batches, shape `[num_steps]`."""
        costs: Floats = np.where(self.filler, 0.0, self.cost).sum(axis=1)
        return costs

    def micro_batch(self, step: int, slot: int) -> MicroBatch:
        if not (0 <= step < self.num_steps and 0 <= slot < self.slots_per_step):
            raise ContractBroken(
                f"no step {step} slot {slot} in {self.num_steps} steps of {self.slots_per_step} slots",
                where=f"epoch {self.epoch}",
                fix="count steps and slots from 0",
            )
        m = step * self.slots_per_step + slot
        return MicroBatch(
            epoch=self.epoch,
            step=step,
            slot=slot,
            sample_ids=self.sample_ids[self.offsets[m] : self.offsets[m + 1]],
            padded_length=int(self.padded_length[step, slot]),
            num_tokens=int(self.num_tokens[step, slot]),
            supervised_tokens=int(self.supervised_tokens[step, slot]),
            cost=float(self.cost[step, slot]),
            filler=bool(self.filler[step, slot]),
            layout=self.layout,
        )

    def step_batches(self, step: int) -> Iterator[MicroBatch]:
        """The micro-batches of one step, slot by slot."""
        return (self.micro_batch(step, slot) for slot in range(self.slots_per_step))

    def summary(self) -> EpochSummary:
        real = ~self.filler
        return EpochSummary(
            epoch=self.epoch,
            num_steps=self.num_steps,
            num_micro_batches=int(real.sum()),
            num_fillers=int(self.filler.sum()),
            num_samples=self.num_samples,
            num_dropped=int(self.dropped.size),
            real_tokens=int(self.num_tokens[real].sum()),
            padded_tokens=int(self.padded_tokens[real].sum()),
            supervised_tokens=int(self.supervised_tokens[real].sum()),
            cost=float(self.step_costs.sum()),
            digest=self.digest(),
        )

    def digest(self) -> str:
        """SHA-256 over every column: equal digests are equal epochs, byte for byte."""
        documents = int(self.layout == "documents")
        head = np.array(
            [self.epoch, self.num_corpus_samples, self.slots_per_step, self.token_budget, documents], dtype=np.int64
        )
        return array_digest(head, *(getattr(self, name) for name in COLUMNS))

    def _broken(self, what: str, fix: str, at: int | None = None) -> ContractBroken:
        where = f"epoch {self.epoch}"
        if at is not None:
            where += f" step {at // self.slots_per_step} slot {at % self.slots_per_step}"
        return ContractBroken(what, where=where, fix=fix)

    def _check_shape(self) -> None:
        if self.epoch < 0 or self.slots_per_step < 1 or self.num_corpus_samples < 1:
            raise self._broken(
                f"{self.num_corpus_samples} samples in steps of {self.slots_per_step} slots",
                "an epoch is counted from 0 and has samples and slots",
            )
        for name, kind in COLUMNS.items():
            if getattr(self, name).dtype != kind:
                raise self._broken(
                    f"column {name} is of type {getattr(self, name).dtype}", f"give {np.dtype(kind).name} values"
                )
        batches = self.offsets.size - 1
        if self.padded_length.ndim != 2 or self.padded_length.shape[1] != self.slots_per_step or self.num_steps < 1:
            raise self._broken(
                f"{batches} micro-batches in the shape {self.padded_length.shape} for {self.slots_per_step} slots",
                "every rank needs its share of each step, or the collectives hang",
            )
        for name in ("num_tokens", "supervised_tokens", "cost", "filler"):
            if getattr(self, name).shape != self.padded_length.shape:
                raise self._broken(f"column {name} has another shape than padded_length", "build all columns together")
        flat = self.offsets.ndim == self.sample_ids.ndim == self.dropped.ndim == 1
        if not flat or batches != self.padded_length.size:
            raise self._broken(
                f"offsets describe {batches} micro-batches, the columns {self.padded_length.size}",
                "build offsets, ids and dropped as flat columns from the batch sizes",
            )
        if self.offsets[0] != 0 or self.offsets[-1] != self.sample_ids.size:
            raise self._broken(
                f"offsets run from {self.offsets[0]} to {self.offsets[-1]} over {self.sample_ids.size} sample ids",
                "build offsets from the batch sizes",
            )

    def _check_batches(self) -> None:
        sizes = np.diff(self.offsets)
        self._first(sizes < 1, lambda m: "the micro-batch is empty", "put a sample or a filler in it")
        rows, lengths, tokens = self.num_rows.ravel(), self.padded_length.ravel(), self.num_tokens.ravel()
        self._first(
            rows * lengths > self.token_budget,
            lambda m: f"{rows[m]} rows of {lengths[m]} tokens exceed the token budget of {self.token_budget}",
            "pack fewer samples, or raise the budget",
        )
        self._first(
            (tokens < sizes) | (tokens > rows * lengths),
            lambda m: f"{tokens[m]} real tokens in {sizes[m]} samples, in {rows[m]} rows of {lengths[m]}",
            "count real tokens within the padded ones, at least one a sample",
        )
        supervised = self.supervised_tokens.ravel()
        self._first(
            (supervised < 0) | (supervised > tokens),
            lambda m: f"{supervised[m]} supervised of {tokens[m]} tokens",
            "count supervised tokens among the real ones",
        )
        cost = self.cost.ravel()
        self._first(
            np.repeat(self.filler.all(axis=1), self.slots_per_step),
            lambda m: "the step holds fillers only",
            "leave it out: it has no loss to normalise",
        )
        self._first(~(np.isfinite(cost) & (cost > 0)), lambda m: f"cost {cost[m]}", "a cost is finite and above 0")

    def _check_every_sample_once(self) -> None:
        ids, dropped, corpus = self.sample_ids, self.dropped, self.num_corpus_samples
        if ids.min() < 0 or ids.max() >= corpus:
            at = int(((ids < 0) | (ids >= corpus)).argmax())
            raise self._broken(f"sample {ids[at]} is not in the corpus", "plan from this snapshot", self._batch_at(at))
        if dropped.size and (dropped.min() < 0 or dropped.max() >= corpus):
            raise self._broken("a dropped sample is not in the corpus", "plan from this snapshot")
        real, copies = self._real_and_copies()
        # One byte a sample: as many marks as ids means that no two ids made the same one.
        seen = np.zeros(corpus, dtype=np.bool_)
        seen[real] = True
        if np.count_nonzero(seen) != real.size:
            self._raise_repeated()
        if copies.size and not seen[copies].all():
            at = int(np.flatnonzero(np.isin(ids, copies[~seen[copies]]))[0])
            raise self._broken(
                "a filler copies a sample that is not scheduled", "copy a scheduled one", self._batch_at(at)
            )
        unique = np.unique(dropped)
        again = unique[seen[unique]] if unique.size == dropped.size else _repeated(dropped)
        seen[dropped] = True
        missing = np.flatnonzero(~seen)
        for odd, how in ((missing, "neither scheduled nor dropped"), (again, "dropped twice or also scheduled")):
            if odd.size:
                raise self._broken(
                    f"sample {odd[0]} is {how} ({odd.size} such samples)",
                    "scheduled and dropped must add up to the corpus",
                )

    def _real_and_copies(self) -> tuple[Ints, Ints]:
        """Ids of real micro-batches, and of fillers."""
        if not self.filler.any():
            return self.sample_ids, self.sample_ids[:0]
        copied = np.repeat(self.filler.ravel(), np.diff(self.offsets))
        return self.sample_ids[~copied], self.sample_ids[copied]

    def _raise_repeated(self) -> None:
        real = ~np.repeat(self.filler.ravel(), np.diff(self.offsets))
        times = np.bincount(self.sample_ids[real], minlength=self.num_corpus_samples)
        twice = int(times.argmax())
        at = int(np.flatnonzero((self.sample_ids == twice) & real)[1])
        raise self._broken(
            f"sample {twice} is scheduled {times[twice]} times", "schedule each sample once", self._batch_at(at)
        )

    def _batch_at(self, place: int) -> int:
        """The micro-batch that holds the id at this place."""
        return int(np.searchsorted(self.offsets, place, side="right")) - 1

    def _first(self, broken: Flags, what: Callable[[int], str], fix: str) -> None:
        if broken.any():
            at = int(broken.argmax())
            raise self._broken(what(at), fix, at)


def _repeated(ids: Ints) -> Ints:
    values, times = np.unique(ids, return_counts=True)
    repeated: Ints = values[times > 1]
    return repeated
