"""Bucket boundaries that waste the least padding: the exact optimum, not a heuristic.

Padding every sample up to its bucket's boundary costs sum over buckets of `w(b_k) * N(b_{k-1}, b_k]`, with w the cost
of one sample of that length. Over candidates x_1 < … < x_U with cumulative counts C this is a segmentation of a line:

    D_k(j) = w_j * C_j + min over i < j of ( D_{k-1}(i) - w_j * C_i )

The inner minimum is over lines of falling slope -C_i asked at rising w_j, so a deque of the lower hull answers
each in amortised constant time: O(K * U) whatever the number of samples. All numbers are whole and of any size, so
nothing is rounded and a tie is a tie.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from itertools import accumulate

from dflash_pipeline.contracts.batching import CostModel
from dflash_pipeline.contracts.corpus import LengthStatistics
from dflash_pipeline.contracts.errors import Refused

LINEAR = CostModel()


def optimise_boundaries(
    statistics: LengthStatistics, *, num_buckets: int, grid: int = 1, cost: CostModel = LINEAR
) -> tuple[int, ...]:
    """The at most `num_buckets` boundaries (padded lengths, ascending) of least padded cost.

    Boundaries are unique lengths rounded up to a multiple of `grid`; the last holds the longest sample. Fewer than
    `num_buckets` come back when there are fewer distinct candidates. Ties go to the smaller split point.
    """
    if num_buckets < 1 or grid < 1:
        raise Refused(f"{num_buckets} buckets on a grid of {grid}", where="boundaries", fix="use at least 1 for each")
    candidates, below = _candidates(statistics, grid)
    weights = _weights(candidates, cost)
    splits = _segment(weights, below, min(num_buckets, len(candidates)))
    return tuple(candidates[j] for j in splits)


def padding_efficiency(statistics: LengthStatistics, boundaries: Sequence[int]) -> float:
    """Real tokens / tokens padded up to the boundaries, in (0, 1]."""
    if statistics.max_length > boundaries[-1]:
        raise Refused(
            f"a sample of {statistics.max_length} tokens above the last boundary {boundaries[-1]}",
            where=f"boundaries of snapshot {statistics.snapshot}",
            fix="optimise the boundaries for this snapshot",
        )
    histogram = zip(statistics.lengths, statistics.counts, strict=True)
    return statistics.num_tokens / sum(
        boundaries[bisect_left(boundaries, length)] * count for length, count in histogram
    )


def _candidates(statistics: LengthStatistics, grid: int) -> tuple[list[int], list[int]]:
    """Candidate boundaries, and how many samples each holds together with all before it."""
    held: dict[int, int] = {}
    for length, below in zip(statistics.lengths, accumulate(statistics.counts), strict=True):
        held[-(-length // grid) * grid] = below  # The last length of a grid cell has the count of the whole cell.
    return list(held), list(held.values())


def _weights(candidates: list[int], cost: CostModel) -> list[int]:
    """Cost of one sample of each length, up to a common factor that makes all of them whole."""
    if cost.quadratic_length is None:
        return candidates
    numerator, denominator = cost.quadratic_length.as_integer_ratio()
    return [x * (numerator + x * denominator) for x in candidates]


def _segment(weights: Sequence[int], below: Sequence[int], num_segments: int) -> list[int]:
    """Indices of the last candidate of each segment, in order; there are at least `num_segments` candidates.

    Weights and counts rise strictly, so a segment more always costs less: none of them is empty.
    """
    best = [weight * count for weight, count in zip(weights, below, strict=True)]
    choices: list[list[int]] = []
    for _ in range(num_segments - 1):
        best, choice = _one_more_segment(best, weights, below)
        choices.append(choice)
    ends = [len(weights) - 1]
    for choice in reversed(choices):
        ends.append(choice[ends[-1]])
    return ends[::-1]


def _one_more_segment(best: Sequence[int], weights: Sequence[int], below: Sequence[int]) -> tuple[list[int], list[int]]:
    """Best costs with one segment more, and for each candidate where its last segment starts (-1: at the beginning)."""
    hull: deque[tuple[int, int, int]] = deque([(0, 0, -1)])  # (count below, best cost, candidate index)
    costs: list[int] = []
    starts: list[int] = []
    for j, (weight, count) in enumerate(zip(weights, below, strict=True)):
        while len(hull) > 1 and hull[1][1] - weight * hull[1][0] < hull[0][1] - weight * hull[0][0]:
            hull.popleft()
        start_count, start_cost, start = hull[0]
        costs.append(weight * count + start_cost - weight * start_count)
        starts.append(start)
        line = (count, best[j], j)
        while len(hull) > 1 and _middle_is_useless(hull[-2], hull[-1], line):
            hull.pop()
        hull.append(line)
    return costs, starts


def _middle_is_useless(a: tuple[int, int, int], b: tuple[int, int, int], c: tuple[int, int, int]) -> bool:
    """Lines y = cost - w * count with rising counts: is b nowhere strictly below both a and c?"""
    return (b[1] - a[1]) * (c[0] - b[0]) >= (c[1] - b[1]) * (b[0] - a[0])
