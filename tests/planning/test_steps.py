"""Every slot of every step is filled: by halves while there are any, then by fillers, or the tail is dropped."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dflash_pipeline.contracts.batching import BatchingSpec
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.planning.batches import Batches, weigh
from dflash_pipeline.planning.packing import Packing, longest_of_each, one_after_another
from dflash_pipeline.planning.steps import halve_to_full_steps, with_fillers, without_tail
from tests.strategies import met, must_meet, samples_of, spec_of


def packed(sizes: list[int], lengths: np.ndarray | None = None) -> tuple[Packing, np.ndarray]:
    """Samples 0, 1, 2 … in micro-batches of these sizes, each one token longer than the one before."""
    counts = np.array(sizes, dtype=np.int64)
    lengths = np.arange(1, counts.sum() + 1) if lengths is None else lengths
    ids = np.arange(counts.sum())
    return one_after_another(ids, counts, longest_of_each(lengths, counts)), lengths


def fill_steps(packing: Packing, lengths: np.ndarray, spec: BatchingSpec) -> tuple[Batches, np.ndarray]:
    halved = halve_to_full_steps(packing, lengths, spec)
    return with_fillers(weigh(halved, samples_of(lengths.tolist()), spec), spec)


def drop_tail(packing: Packing, spec: BatchingSpec) -> tuple[Batches, np.ndarray]:
    return without_tail(weigh(packing, samples_of([1] * packing.sample_ids.size), spec), spec)


def batches(packing: Packing | Batches) -> list[list[int]]:
    runs = zip(packing.starts.tolist(), packing.sizes.tolist(), strict=True)
    return [packing.sample_ids[start : start + size].tolist() for start, size in runs]


def slots(n: int, **changes: object) -> BatchingSpec:
    return spec_of(slots_per_step=n, **changes)


@must_meet("halves", "fillers", "halves and fillers")
@example([2, 1], 5)
@example([3, 3], 3)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=12), st.integers(1, 9))
def test_steps_are_full_and_no_sample_is_lost(sizes, slots_per_step):
    packing, lengths = packed(sizes)
    filled, filler = fill_steps(packing, lengths, slots(slots_per_step))
    assert filled.sizes.size % slots_per_step == 0
    assert filled.sizes.size - len(sizes) < slots_per_step
    real = [batch for batch, copied in zip(batches(filled), filler, strict=True) if not copied]
    assert sorted(i for batch in real for i in batch) == list(range(sum(sizes)))
    assert filled.padded_length.tolist() == [max(lengths[batch]) for batch in batches(filled)]
    met("halves", when=len(real) > len(sizes))
    if filler.any():
        met("fillers")
        met("halves and fillers", when=len(real) > len(sizes))
        assert all(len(batch) == 1 for batch in real)
        assert not filler[:-slots_per_step].any()
        assert not filler[: -filler.sum()].any()
    for before, after in zip(batches(packing), real, strict=False):
        assert after == before[: len(after)]


def test_the_largest_is_halved_and_its_half_goes_to_the_end():
    packing, lengths = packed([2, 5, 1])
    filled, filler = fill_steps(packing, lengths, slots(5))
    assert batches(filled) == [[0, 1], [2, 3], [7], [5, 6], [4]]
    assert not filler.any()
    assert filled.padded_length.tolist() == [2, 4, 8, 7, 5]


def test_of_equals_the_first_is_halved():
    packing, lengths = packed([3, 3, 3])
    filled, _ = fill_steps(packing, lengths, slots(4))
    assert batches(filled) == [[0, 1], [3, 4, 5], [6, 7, 8], [2]]


def test_among_many_equals_the_first_are_halved():
    # More than a sort that is not stable keeps in order.
    packing, lengths = packed([3, 2] * 20)
    filled, _ = fill_steps(packing, lengths, slots(43))
    assert filled.sizes.tolist() == [2, 2] * 3 + [3, 2] * 17 + [1] * 3


def test_halves_are_halved_again():
    packing, lengths = packed([8])
    filled, filler = fill_steps(packing, lengths, slots(4))
    assert batches(filled) == [[0, 1], [4, 5], [2, 3], [6, 7]]
    assert not filler.any()


def test_halves_of_a_static_shape_keep_their_boundary():
    packing, lengths = packed([4, 1])
    packing = one_after_another(packing.sample_ids, packing.sizes, np.array([10, 20]))
    spec = BatchingSpec(strategy="bucket", padding="boundary", token_budget=40, slots_per_step=3, boundaries=(10, 20))
    filled, _ = fill_steps(packing, lengths, spec)
    assert batches(filled) == [[0, 1], [4], [2, 3]]
    assert filled.padded_length.tolist() == [10, 20, 10]


def test_halves_of_documents_are_rows_of_their_own_tokens():
    packing, lengths = packed([4, 1], np.array([7, 1, 2, 3, 9]))
    packing = one_after_another(packing.sample_ids, packing.sizes, np.array([13, 9]))
    filled, _ = fill_steps(packing, lengths, spec_of("varlen", slots_per_step=3))
    assert batches(filled) == [[0, 1], [4], [2, 3]]
    assert filled.padded_length.tolist() == [8, 9, 5]


def test_fillers_copy_the_cheapest():
    packing, lengths = packed([1, 1, 1], np.array([30, 10, 20]))
    filled, filler = fill_steps(packing, lengths, slots(5))
    assert batches(filled) == [[0], [1], [2], [1], [1]]
    assert filler.tolist() == [False] * 3 + [True] * 2
    assert filled.padded_length.tolist() == [30, 10, 20, 10, 10]


def test_one_sample_for_eight_slots_is_one_step():
    packing, lengths = packed([1])
    filled, filler = fill_steps(packing, lengths, slots(8))
    assert batches(filled) == [[0]] * 8
    assert filler.tolist() == [False] + [True] * 7


def test_full_steps_stay_as_they_are():
    packing, lengths = packed([4, 2])
    filled, filler = fill_steps(packing, lengths, slots(2))
    assert batches(filled) == [[0, 1, 2, 3], [4, 5]]
    assert not filler.any()


@must_meet("nothing would be left", "a tail")
@example([1], 2)
@example([2, 1, 3], 2)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=12), st.integers(1, 6))
def test_dropping_keeps_the_full_steps(sizes, slots_per_step):
    packing, _ = packed(sizes)
    kept = len(sizes) - len(sizes) % slots_per_step
    if not kept:
        met("nothing would be left")
        with pytest.raises(Refused) as refused:
            drop_tail(packing, slots(slots_per_step))
        assert str(refused.value) == (
            f"batching.tail: dropping the tail would drop all: {len(sizes)} micro-batches for {slots_per_step} slots; "
            "use tail: fill, or fewer slots per step"
        )
        return
    head, dropped = drop_tail(packing, slots(slots_per_step))
    met("a tail", when=dropped.size > 0)
    assert batches(head) == batches(packing)[:kept]
    assert dropped.tolist() == list(range(sum(sizes[:kept]), sum(sizes)))
    assert head.padded_length.tolist() == packing.padded_length[:kept].tolist()


def test_dropped_ids_ascend():
    packing = one_after_another(np.array([3, 1, 2, 0]), np.array([1, 1, 2]), np.ones(3, np.int64))
    head, dropped = drop_tail(packing, slots(2))
    assert head.sample_ids.tolist() == [3, 1]
    assert dropped.tolist() == [0, 2]
