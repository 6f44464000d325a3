"""Windows: every usable sample once, longest first, and nobody's place depends on who else is there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_pipeline.contracts.hashing import counter_hash
from dflash_pipeline.planning import windows
from dflash_pipeline.planning.keys import Purpose, stream
from dflash_pipeline.planning.windows import random_windows

BASE = stream(3, 1, Purpose.SAMPLES)


def read_only(lengths: list[int]) -> np.ndarray:
    column = np.array(lengths, dtype=np.int64)
    column.setflags(write=False)
    return column


def windows_of(lengths: np.ndarray, longest: int) -> list[np.ndarray]:
    found = random_windows(lengths, longest=longest, token_budget=10**9, base=BASE)
    return np.split(found.sample_ids, found.starts[1:-1])


@given(st.lists(st.integers(0, 50), min_size=1, max_size=80), st.integers(1, 50))
def test_a_window_holds_the_usable_samples_longest_first(lengths, longest):
    column = read_only(lengths)
    [window] = windows_of(column, longest)
    assert sorted(window.tolist()) == [i for i, x in enumerate(lengths) if 0 < x <= longest]
    assert (np.diff(column[window]) <= 0).all()


@pytest.mark.parametrize("samples_a_window", [500, 20])
def test_a_window_is_an_equal_share_of_the_keys(monkeypatch, samples_a_window):
    # 1,000 windows are more than one chunk: those are scattered in two passes.
    monkeypatch.setattr(windows, "SAMPLES_A_WINDOW", samples_a_window)
    found = windows_of(read_only([1 + i * 7919 % 97 for i in range(20_000)]), 97)
    keys = counter_hash(3, (1 << 8) | Purpose.SAMPLES, np.arange(20_000))
    share = ((keys >> np.uint64(32)) * np.uint64(len(found))) >> np.uint64(32)
    assert len(found) == 20_000 // samples_a_window
    assert [sorted(window.tolist()) for window in found] == [
        np.flatnonzero(share == np.uint64(w)).tolist() for w in range(len(found))
    ]


def test_samples_of_one_length_are_shuffled():
    [window] = windows_of(read_only([7] * 1000), 7)
    steps = np.abs(np.diff(window))
    assert sorted(window.tolist()) == list(range(1000))
    assert np.median(steps) > 100


@pytest.mark.parametrize(("budget", "expected"), [(10**6, 1), (500, 2), (100, 8), (1, 8)])
def test_a_small_corpus_has_windows_too(budget, expected):
    lengths = read_only([10] * 20_000)
    found = random_windows(lengths, longest=10, token_budget=budget, base=BASE)
    assert found.starts.size - 1 == expected


@pytest.mark.parametrize("unusable", [0, 11])
@pytest.mark.parametrize("samples_a_window", [500, 20])
def test_unusable_samples_make_no_window(monkeypatch, unusable, samples_a_window):
    # Half have no token, or too many: windows are as many as the others fill, in two passes too.
    monkeypatch.setattr(windows, "SAMPLES_A_WINDOW", samples_a_window)
    lengths = read_only([10 if i % 2 else unusable for i in range(20_000)])
    found = windows_of(lengths, 10)
    assert len(found) == 10_000 // samples_a_window
    assert sorted(np.concatenate(found).tolist()) == list(range(1, 20_000, 2))


def test_tokens_that_are_not_scheduled_count_for_no_window():
    # 160,000 tokens fill two windows of 150 budgets, all 300,000 would fill four.
    lengths = read_only([10] * 16_000 + [14] * 10_000)
    assert random_windows(lengths, longest=10, token_budget=500, base=BASE).starts.size - 1 == 2
    assert random_windows(lengths, longest=14, token_budget=500, base=BASE).starts.size - 1 == 4


def test_the_order_inside_a_window_is_length_then_key_then_id():
    lengths = read_only([1 + i * 7919 % 16 for i in range(2_000)])
    [window] = windows_of(lengths, 16)
    ties = counter_hash(3, (1 << 8) | Purpose.SAMPLES, np.arange(2_000)) & np.uint64(2**windows.TIE_BITS - 1)
    assert window.tolist() == sorted(range(2_000), key=lambda i: (-lengths[i], ties[i], i))


def test_two_passes_keep_the_order_of_one(monkeypatch):
    lengths = read_only([1 + i * 7919 % 3 for i in range(6_000)])
    monkeypatch.setattr(windows, "SAMPLES_A_WINDOW", 20)
    ties = counter_hash(3, (1 << 8) | Purpose.SAMPLES, np.arange(6_000)) & np.uint64(2**windows.TIE_BITS - 1)
    found = windows_of(lengths, 3)
    assert len(found) == 300
    for window in found:
        assert window.tolist() == sorted(window.tolist(), key=lambda i: (-lengths[i], ties[i], i))
