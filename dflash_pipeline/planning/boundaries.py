"""Bucket boundaries of least expected cost: the exact optimum by dynamic programming, not a heuristic.

K buckets cut the candidate lengths x_1 < … < x_U into K segments, and the cost of all is a sum over segments:

    D_k(j) = min over i < j of  D_{k-1}(i) + cost of the segment (x_i, x_j]

With `boundary` every sample is padded to its bucket's boundary: the segment costs w(x_j) * (C_j - C_i), with w the cost
of one sample and C the cumulative counts. The best i then never falls as j grows, so each layer is solved by halving:
O(U log U) whatever the number of samples, in whole numbers, so that a tie is a tie.

With `batch-max` a micro-batch is padded to its own longest sample only. n = budget // x_j random members of the bucket
have the expected cost of their maximum E[w(max)] = w(x_j) - sum over t of (G(t) ** n) * (w(x_{t+1}) - w(x_t)), G being
the distribution inside the bucket: the segment costs (C_j - C_i) * E[w(max)]. All i are tried: O(K * U^2) on a grid.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Literal

import numpy as np

from dflash_pipeline.contracts.batching import CostModel, Objective
from dflash_pipeline.contracts.corpus import LengthStatistics
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.planning.compiled import as_written, compiled
from dflash_pipeline.planning.packing import Floats, Ints

LINEAR = CostModel()
CANDIDATES = 176
"""Cells of the grid that `batch-max` lays by itself; twice as many move the optimum by 0.0001 and take eight times as
long."""
MOST_CANDIDATES = 2048
MOST_AUTOMATIC = 32
"""Most buckets that "auto" looks at: each is a shape to compile for."""
_EXACT = 2**62
NEGLIGIBLE = 1e-9
"""A probability that is left out, with all smaller ones."""


def optimise_boundaries(
    statistics: LengthStatistics,
    *,
    num_buckets: int,
    grid: int = 1,
    cost: CostModel = LINEAR,
    objective: Objective = "boundary",
    token_budget: int | None = None,
) -> tuple[int, ...]:
    """The at most `num_buckets` boundaries (padded lengths, ascending) of least expected cost.

    Boundaries are unique lengths rounded up to a multiple of `grid`; the last holds the longest sample. Fewer than
    `num_buckets` come back when there are fewer distinct candidates. Ties go to the smaller split point. `batch-max`
    needs the `token_budget` that says how many samples share a micro-batch.
    """
    return boundaries_by_count(
        statistics, most=num_buckets, grid=grid, cost=cost, objective=objective, token_budget=token_budget
    )[-1]


def choose_boundaries(
    statistics: LengthStatistics,
    *,
    num_buckets: int | Literal["auto"],
    grid: int,
    cost: CostModel,
    objective: Objective,
    token_budget: int | None,
) -> tuple[int, ...]:
    """`optimise_boundaries`, or with "auto" those at the knee of the efficiency curve up to `MOST_AUTOMATIC`."""
    most = MOST_AUTOMATIC if num_buckets == "auto" else num_buckets
    found = boundaries_by_count(
        statistics, most=most, grid=grid, cost=cost, objective=objective, token_budget=token_budget
    )
    if num_buckets != "auto":
        return found[-1]
    expected = token_budget if objective == "batch-max" else None
    return found[knee([padding_efficiency(statistics, b, token_budget=expected) for b in found]) - 1]


def boundaries_by_count(
    statistics: LengthStatistics,
    *,
    most: int,
    grid: int,
    cost: CostModel,
    objective: Objective,
    token_budget: int | None,
) -> list[tuple[int, ...]]:
    """The best boundaries for each number of buckets from 1 to `most`, as `optimise_boundaries` gives them."""
    if most < 1 or grid < 1:
        raise Refused(f"{most} buckets on a grid of {grid}", where="boundaries", fix="use at least 1 for each")
    if objective == "batch-max":
        if token_budget is None or token_budget < statistics.max_length:
            raise Refused(
                f"a token budget of {'nothing' if token_budget is None else token_budget} for samples of up to "
                f"{statistics.max_length} tokens",
                where="boundaries",
                fix="give the token budget of a micro-batch (--token-budget); it must hold the longest sample",
            )
        candidates, below = _on_a_grid(statistics, grid)
    else:
        candidates, below = _candidates(statistics, grid)
    weights = _weights(candidates, cost)
    layers = min(most, len(candidates))
    starts: Sequence[Ints] | Ints
    if objective == "boundary":
        starts = _segment_to_boundary(weights, below, layers)
    else:
        assert token_budget is not None
        sizes = [max(1, token_budget // x) for x in candidates]
        starts = _segment_to_maximum(
            np.array(weights, dtype=np.float64), np.array(below, dtype=np.float64), np.array(sizes), layers
        )
    return [tuple(candidates[j] for j in _ends(starts[:k], len(candidates))) for k in range(layers)]


def padding_efficiency(
    statistics: LengthStatistics, boundaries: Sequence[int], *, token_budget: int | None = None
) -> float:
    """Real tokens / expected padded tokens, in (0, 1]: padded up to the boundaries, or, with a `token_budget`, each
    micro-batch to the expected longest of as many random members of its bucket as the budget holds."""
    if statistics.max_length > boundaries[-1]:
        raise Refused(
            f"a sample of {statistics.max_length} tokens above the last boundary {boundaries[-1]}",
            where=f"boundaries of snapshot {statistics.snapshot}",
            fix="optimise the boundaries for this snapshot",
        )
    lengths, counts = statistics.lengths, statistics.counts
    if token_budget is None:
        padded = sum(boundaries[bisect_left(boundaries, x)] * n for x, n in zip(lengths, counts, strict=True))
        return statistics.num_tokens / padded
    expected = 0.0
    for bucket in range(len(boundaries)):
        low = boundaries[bucket - 1] if bucket else 0
        first, last = bisect_right(lengths, low), bisect_right(lengths, boundaries[bucket])
        if last > first:
            weights = np.array(lengths[first:last], dtype=np.float64)
            held = np.cumsum(np.array(counts[first:last], dtype=np.float64))
            size = max(1, token_budget // boundaries[bucket])
            expected += float(held[-1]) * float(_expected_maximum(weights, held, size, -1, last - first - 1))
    return statistics.num_tokens / expected


def knee(efficiencies: Sequence[float]) -> int:
    """The number of buckets (from 1) after which more of them gain little: where the curve of efficiency against that
    number lies farthest above the line from its first point to its last (V. Satopää et al., "Finding a Kneedle in a
    Haystack", ICDCS workshops 2011)."""
    first, last = efficiencies[0], efficiencies[-1]
    if last <= first:
        return 1
    steps = len(efficiencies) - 1
    return 1 + max(range(len(efficiencies)), key=lambda k: ((efficiencies[k] - first) / (last - first) - k / steps, -k))


def _candidates(statistics: LengthStatistics, grid: int) -> tuple[list[int], list[int]]:
    """Candidate boundaries, and how many samples each holds together with all before it."""
    held: dict[int, int] = {}
    for length, below in zip(statistics.lengths, accumulate(statistics.counts), strict=True):
        held[-(-length // grid) * grid] = below  # The last length of a grid cell has the count of the whole cell.
    return list(held), list(held.values())


def candidate_grid(statistics: LengthStatistics, grid: int, objective: Objective) -> int:
    """The grid that candidates lie on: the one asked for, but 1 with `batch-max` is one of about `CANDIDATES` cells."""
    return grid if grid > 1 or objective == "boundary" else -(-statistics.max_length // CANDIDATES)


def _on_a_grid(statistics: LengthStatistics, grid: int) -> tuple[list[int], list[int]]:
    """Candidates at every multiple of a grid, also where no sample is: a higher boundary makes micro-batches smaller.

    Without a grid of its own one is laid (`candidate_grid`), its last candidate the longest sample.
    """
    step = candidate_grid(statistics, grid, "batch-max")
    if statistics.max_length > step * MOST_CANDIDATES:
        raise Refused(
            f"a grid of {grid} has {-(-statistics.max_length // grid)} candidates up to {statistics.max_length}",
            where="boundaries",
            fix=f"use a grid of at least {-(-statistics.max_length // MOST_CANDIDATES)} with batch-max, or 1 for any",
        )
    first = -(-statistics.lengths[0] // step) * step
    xs = list(range(first, statistics.max_length + step, step))
    if grid == 1:
        xs[-1] = statistics.max_length
    below = list(accumulate(statistics.counts))
    return xs, [below[bisect_right(statistics.lengths, x) - 1] for x in xs]


def _weights(candidates: list[int], cost: CostModel) -> list[int]:
    """Cost of one sample of each length, up to a common factor that makes all of them whole."""
    if cost.quadratic_length is None:
        return candidates
    numerator, denominator = cost.quadratic_length.as_integer_ratio()
    return [x * (numerator + x * denominator) for x in candidates]


def _ends(starts: Sequence[Ints] | Ints, num_candidates: int) -> list[int]:
    """Index of the last candidate of each segment, followed back from the end."""
    ends = [num_candidates - 1]
    for start in reversed(starts):
        ends.append(int(start[ends[-1]]))
    return ends[::-1]


def _segment_to_boundary(weights: list[int], below: list[int], layers: int) -> list[Ints]:
    """For each number of segments above 1 and each candidate: the last candidate of the segment before its own."""
    best = [weight * count for weight, count in zip(weights, below, strict=True)]
    if weights[-1] * below[-1] < _EXACT:
        return list(_boundary_layers(np.array(weights), np.array(below), np.array(best), layers - 1))
    # Beyond 64 bits the same loops run on Python's whole numbers: slow, and still exact.
    objects = [np.array(values, dtype=object) for values in (weights, below, best)]
    return list(as_written(_boundary_layers)(*objects, layers - 1))


@compiled
def _boundary_layers(weights: Ints, below: Ints, best: Ints, layers: int) -> Ints:
    count = weights.size
    starts = np.zeros((layers, count), dtype=np.int64)
    todo = np.empty((2 * count + 2, 4), dtype=np.int64)  # first and last j, first and last i to try
    for layer in range(layers):
        # With one segment more than candidates there is nothing to gain: those keep what they have.
        new = best.copy()
        todo[0, 0], todo[0, 1], todo[0, 2], todo[0, 3] = layer + 1, count - 1, layer, count - 2
        waiting = 1
        while waiting:
            waiting -= 1
            low, high, first, last = todo[waiting, 0], todo[waiting, 1], todo[waiting, 2], todo[waiting, 3]
            if low > high:
                continue
            j = (low + high) // 2
            at = first
            least = best[first] + weights[j] * (below[j] - below[first])
            for i in range(first + 1, min(j - 1, last) + 1):
                paid = best[i] + weights[j] * (below[j] - below[i])
                if paid < least:
                    at, least = i, paid
            new[j], starts[layer, j] = least, at
            todo[waiting, 0], todo[waiting, 1], todo[waiting, 2], todo[waiting, 3] = low, j - 1, first, at
            waiting += 1
            todo[waiting, 0], todo[waiting, 1], todo[waiting, 2], todo[waiting, 3] = j + 1, high, at, last
            waiting += 1
        best = new
    return starts


@compiled
def _segment_to_maximum(weights: Floats, below: Floats, sizes: Ints, layers: int) -> Ints:
    count = weights.size
    segments, best = _segment_costs(weights, below, sizes)
    starts = np.zeros((layers - 1, count), dtype=np.int64)
    for layer in range(layers - 1):
        new = best.copy()
        for j in range(layer + 1, count):
            at, least = layer, best[layer] + segments[j, layer]
            for i in range(layer + 1, j):
                paid = best[i] + segments[j, i]
                if paid < least:
                    at, least = i, paid
            new[j], starts[layer, j] = least, at
        best = new
    return starts


@compiled
def _segment_costs(weights: Floats, below: Floats, sizes: Ints) -> tuple[Floats, Floats]:
    """Cost of the segment (i, j], at [j, i]; and of all up to j, as one segment."""
    count = weights.size
    segments, whole = np.zeros((count, count)), np.empty(count)
    for i in range(-1, count - 1):
        held = below - (below[i] if i >= 0 else 0.0)
        for j in range(i + 1, count):
            paid = held[j] * _expected_maximum(weights, held, sizes[j], i, j) if held[j] > 0 else 0.0
            if i >= 0:
                segments[j, i] = paid
            else:
                whole[j] = paid
    return segments, whole


@compiled
def _expected_maximum(weights: Floats, held: Floats, size: int, first: int, last: int) -> float:
    """Expected largest weight of `size` random members of the candidates `first + 1 … last`.

    `held[t]` is how many members candidate t and those before it hold.
    """
    together: int = min(size, int(held[last]))
    expected, per_member = float(weights[last]), 1.0 / held[last]
    for t in range(last - 1, first, -1):
        # share ** together, by squaring.
        power, square, left = 1.0, held[t] * per_member, together
        while left > 0:
            if left & 1:
                power *= square
            square *= square
            left >>= 1
        if power < NEGLIGIBLE:
            break
        expected -= power * (weights[t + 1] - weights[t])
    return expected
