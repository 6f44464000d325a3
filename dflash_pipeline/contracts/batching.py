"""The rules that every epoch of a run is batched by. True for the run; no count of batches or steps lives here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from dflash_pipeline.contracts.errors import ContractBroken
from dflash_pipeline.contracts.fingerprint import fingerprint

Strategy = Literal["sorted", "shuffle", "bucket", "window", "varlen"]
Layout = Literal["rows", "documents"]
Objective = Literal["boundary", "batch-max"]
Padding = Literal["batch-max", "boundary"]
TailPolicy = Literal["fill", "drop"]
OverlongPolicy = Literal["drop", "refuse"]

MOST_TOKENS = 2**40
"""Longest sample and largest budget: far above any real one, and low enough that no sum leaves 64 bits."""

ORDER_VERSION = 3
"""Part of every plan's identity: raised when order or packing change, so that no old plan passes for a new one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CostModel:
    """Cost of a sample, in token units: `c = L * (1 + L / quadratic_length) + anchor_cost * anchors`.

    `quadratic_length` is the length at which attention costs as much as everything linear in tokens (6 * hidden size
    for a dense block); `None` means linear. Source: docs/batching.md, "Cost".
    """

    quadratic_length: float | None = None
    anchor_cost: float = 0.0

    def __post_init__(self) -> None:
        lengths = () if self.quadratic_length is None else (self.quadratic_length,)
        if not all(0 < x < math.inf for x in lengths) or not 0 <= self.anchor_cost < math.inf:
            raise ContractBroken(
                f"quadratic_length {self.quadratic_length}, anchor_cost {self.anchor_cost}",
                where="cost model",
                fix="use a positive length (none for linear cost) and a finite anchor cost of at least 0",
            )
        # 24576 and 24576.0 are one cost, so they must have one fingerprint.
        object.__setattr__(self, "anchor_cost", float(self.anchor_cost))
        if self.quadratic_length is not None:
            object.__setattr__(self, "quadratic_length", float(self.quadratic_length))


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchingSpec:
    """Everything the order of a run is a function of, beside the snapshot and the epoch number."""

    strategy: Strategy
    token_budget: int
    """Most padded tokens in one micro-batch: longest sample x samples, or tokens where documents lie end to end."""
    slots_per_step: int
    """Micro-batches in one optimiser step. Any divisor of it may be the number of ranks."""
    micro_batches_per_rank: int = 1
    """Micro-batches of a step that one rank is planned to run, for balance; ranks at launch may differ."""
    boundaries: tuple[int, ...]
    """Padded lengths of the buckets, ascending; a sample belongs to the first that holds it."""
    padding: Padding = "batch-max"
    """Pad a micro-batch to its own longest sample, or (static shapes) to its bucket's boundary."""
    cost: CostModel = CostModel()
    seed: int = 0
    tail: TailPolicy = "fill"
    """What an unfilled last step gets: smaller batches then zero-weight fillers, or its samples listed as dropped."""
    overlong: OverlongPolicy = "refuse"
    """A sample above the budget: refuse the plan and name it, or list it as dropped. (Truncation is ingestion's.)"""

    def __post_init__(self) -> None:
        self._check_choices()
        counts = (self.token_budget, self.slots_per_step, self.micro_batches_per_rank)
        if min(counts) < 1 or max(counts) > MOST_TOKENS:
            raise ContractBroken(
                f"token budget {self.token_budget}, slots per step {self.slots_per_step}, "
                f"micro-batches per rank {self.micro_batches_per_rank}",
                where="batching",
                fix=f"each must be at least 1 and at most {MOST_TOKENS}",
            )
        if self.slots_per_step % self.micro_batches_per_rank:
            raise ContractBroken(
                f"{self.micro_batches_per_rank} micro-batches per rank do not divide {self.slots_per_step} slots",
                where="batching.micro_batches_per_rank",
                fix="choose a divisor of slots_per_step",
            )
        if self.padding == "boundary" and self.strategy != "bucket":
            raise ContractBroken(
                f"padding up to the boundary with strategy {self.strategy}, which has no buckets",
                where="batching.padding",
                fix="use padding: batch-max, or strategy: bucket",
            )
        ascending = all(b > a for a, b in zip(self.boundaries, self.boundaries[1:], strict=False))
        if not self.boundaries or self.boundaries[0] < 1 or not ascending:
            raise ContractBroken(
                f"boundaries {list(self.boundaries)}",
                where="batching.boundaries",
                fix="give at least one positive length, ascending without repeats",
            )
        if not 0 <= self.seed < 2**63:
            raise ContractBroken(f"seed {self.seed}", where="batching.seed", fix="use 0 or more, below 2^63")

    def _check_choices(self) -> None:
        choices = (
            ("strategy", self.strategy, Strategy),
            ("padding", self.padding, Padding),
            ("tail", self.tail, TailPolicy),
            ("overlong", self.overlong, OverlongPolicy),
        )
        for name, value, allowed in choices:
            if value not in get_args(allowed):
                raise ContractBroken(
                    f"{name} {value!r} is unknown",
                    where=f"batching.{name}",
                    fix=f"use one of {', '.join(get_args(allowed))}",
                )

    @property
    def layout(self) -> Layout:
        """How a micro-batch lies in memory: one row a sample, padded, or all its samples end to end in one row."""
        return "documents" if self.strategy == "varlen" else "rows"

    @property
    def fingerprint(self) -> str:
        return fingerprint(spec=self, order_version=ORDER_VERSION)
