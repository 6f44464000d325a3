"""How long the rest of a run will take: by cost, at this attempt's own pace, with an interval that narrows.

    mid   = cost left * seconds / cost, over this attempt's steps but the first, which warms up
    sd    = s * sqrt(1 / n + 1 / m),  s the spread of the pace over n blocks of steps, m blocks of that size left
    low, high = mid -+ t * cost left * sd, widened to hold what the last quarter of the blocks says

Blocks, and not steps: neighbours in time are slow together, and the spread of single steps would promise too much. `t`
is Student's for n - 1 degrees of freedom, at 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

MOST_BLOCKS = 64
"""Then two and two become one: memory is bounded, and the whole attempt stays in it."""

_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
_NORMAL = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeLeft:
    """Seconds until the plan's end; all NaN while there is no pace yet."""

    mid: float
    low: float
    high: float


UNKNOWN = TimeLeft(mid=math.nan, low=math.nan, high=math.nan)
NOTHING = TimeLeft(mid=0.0, low=0.0, high=0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Block:
    """Some steps after each other."""

    cost: float
    seconds: float

    @property
    def pace(self) -> float:
        return self.seconds / self.cost

    def plus(self, other: _Block) -> _Block:
        return _Block(cost=self.cost + other.cost, seconds=self.seconds + other.seconds)


class Pace:
    """Is told every step of one attempt, and asked between them."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._open: list[_Block] = []
        self._steps_a_block = 1
        self._warmed_up = False

    def add(self, *, cost: float, seconds: float) -> None:
        """One step. Its cost is above 0 by the plan's contract."""
        if not self._warmed_up:
            self._warmed_up = True
            return
        self._open.append(_Block(cost=cost, seconds=seconds))
        if len(self._open) < self._steps_a_block:
            return
        self._blocks.append(_together(self._open))
        self._open = []
        if len(self._blocks) == MOST_BLOCKS:
            self._blocks = [a.plus(b) for a, b in zip(self._blocks[::2], self._blocks[1::2], strict=True)]
            self._steps_a_block *= 2

    def left(self, cost: float) -> TimeLeft:
        """For a cost still to be done, at least 0."""
        if cost <= 0:
            return NOTHING
        count = len(self._blocks)
        if count < 2:
            return UNKNOWN
        overall = _together(self._blocks)
        recent = _together(self._blocks[-max(1, count // 4) :])
        blocks_left = max(1.0, cost / (overall.cost / count))
        spread = _spread(self._blocks, overall.pace) * math.sqrt(1 / count + 1 / blocks_left)
        mid, around = cost * overall.pace, cost * spread * _quantile(count - 1)
        by_recent = cost * recent.pace
        return TimeLeft(mid=mid, low=max(0.0, min(mid - around, by_recent)), high=max(mid + around, by_recent))


def _together(blocks: Sequence[_Block]) -> _Block:
    return _Block(cost=math.fsum(b.cost for b in blocks), seconds=math.fsum(b.seconds for b in blocks))


def _spread(blocks: Sequence[_Block], pace: float) -> float:
    return math.sqrt(math.fsum((b.pace - pace) ** 2 for b in blocks) / (len(blocks) - 1))


def _quantile(freedom: int) -> float:
    return _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else _NORMAL
