"""The order is a function of values: the same in every run, thread and process, and another in every epoch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_pipeline.contracts.batching import ORDER_VERSION, BatchingSpec, CostModel
from dflash_pipeline.contracts.hashing import counter_hash
from dflash_pipeline.planning.keys import Purpose, key_of, share_of, stream
from dflash_pipeline.planning.manifest import build_epoch_manifest
from dflash_pipeline.planning.order import shuffled
from tests.strategies import samples_of

GOLDEN = {
    "sorted": ["4fa8c50f1ff43828", "1b3eb3df4d636984"],
    "shuffle": ["93fcee1d09685305", "7f948d49f51a7e79"],
    "bucket": ["3b82828e83d6eaf6", "4c7f22b1627c8f17"],
    "bucket, static": ["eabd3061bc6ffc7a", "d394fdbef4fe274e"],
    "window": ["5485b3adcb026217", "73cf1d3cc12a8d50"],
    "window, accumulated": ["988c513e2fcea7c4", "5f1561bf12ba62ec"],
    "varlen": ["d4acce22fcf3fef0", "a0dded4f07739cb1"],
}
"""Digests of epochs 0 and 1. Where one changes, raise `ORDER_VERSION`: no plan goes on in another order."""

LENGTHS = [1 + i * i % 97 for i in range(500)]
SPECS = {
    "sorted": BatchingSpec(strategy="sorted", token_budget=300, slots_per_step=4, boundaries=(97,), seed=11),
    "shuffle": BatchingSpec(strategy="shuffle", token_budget=300, slots_per_step=4, boundaries=(97,), seed=11),
    "bucket": BatchingSpec(strategy="bucket", token_budget=300, slots_per_step=4, boundaries=(25, 60, 97), seed=11),
    "bucket, static": BatchingSpec(
        strategy="bucket", padding="boundary", token_budget=300, slots_per_step=4, boundaries=(25, 60, 97), seed=11
    ),
    "window": BatchingSpec(strategy="window", token_budget=300, slots_per_step=4, boundaries=(97,), seed=11),
    "window, accumulated": BatchingSpec(
        strategy="window",
        token_budget=300,
        slots_per_step=4,
        micro_batches_per_rank=2,
        boundaries=(97,),
        cost=CostModel(quadratic_length=50.0, anchor_cost=0.25),
        seed=11,
    ),
    "varlen": BatchingSpec(
        strategy="varlen",
        token_budget=300,
        slots_per_step=4,
        boundaries=(97,),
        cost=CostModel(quadratic_length=50.0),
        seed=11,
    ),
}


def digests(name: str) -> list[str]:
    samples = samples_of(LENGTHS)
    return [build_epoch_manifest(samples, SPECS[name], epoch=epoch).digest()[:16] for epoch in (0, 1)]


def everything() -> dict[str, list[str]]:
    return {name: digests(name) for name in SPECS}


def test_digests_are_pinned():
    assert (ORDER_VERSION, everything()) == (3, GOLDEN)


def test_threads_agree():
    with ThreadPoolExecutor(max_workers=4) as threads:
        runs = [threads.submit(everything) for _ in range(4)]
        assert [run.result() for run in runs] == [GOLDEN] * 4


@pytest.mark.parametrize(
    "surroundings",
    [{"PYTHONHASHSEED": "1", "OMP_NUM_THREADS": "1"}, {"PYTHONHASHSEED": "4242", "OMP_NUM_THREADS": "3"}],
)
def test_processes_agree(surroundings):
    code = "import json; from tests.planning.test_order import everything; print(json.dumps(everything()))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | surroundings,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == GOLDEN


@pytest.mark.parametrize("name", SPECS)
def test_epochs_and_seeds_give_other_orders(name):
    samples = samples_of(LENGTHS)
    found = {build_epoch_manifest(samples, SPECS[name], epoch=epoch).sample_ids.tobytes() for epoch in range(5)}
    other = replace(SPECS[name], seed=12)
    found.add(build_epoch_manifest(samples, other, epoch=0).sample_ids.tobytes())
    assert len(found) == 6


@pytest.mark.parametrize("count", [1, 2, 4095, 20_000])
def test_the_order_is_that_of_whole_hashes(count):
    # Far above the size of a part, so that parts, digits and the last exchange all have work to do.
    indices = np.arange(count) * 3 + 1
    keys = counter_hash(5, (2 << 8) | Purpose.STEPS, indices)
    expected = indices[np.argsort(keys, kind="stable")]
    assert shuffled(indices, seed=5, epoch=2, purpose=Purpose.STEPS).tolist() == expected.tolist()


def test_keys_that_agree_in_their_top_bits_are_told_apart_by_the_rest():
    keys = counter_hash(5, Purpose.STEPS, np.arange(20_000))
    by_key = np.argsort(keys)
    agree = np.flatnonzero(np.diff(keys[by_key] >> np.uint64(42)) == 0)
    assert agree.size > 10
    for at in agree.tolist():
        pair = by_key[at : at + 2]
        for given_order in (pair, pair[::-1].copy()):
            assert shuffled(given_order, seed=5, epoch=0, purpose=Purpose.STEPS).tolist() == pair.tolist()


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**40))
def test_compiled_keys_are_those_of_the_contract(seed, index):
    assert key_of(stream(seed, 7, Purpose.SLOTS), index) == counter_hash(seed, (7 << 8) | 3, np.array([index]))[0]


@given(st.integers(0, 2**64 - 1), st.integers(1, 2**31 - 1))
def test_shares_of_a_key_are_in_range_and_in_order(key, parts):
    share = share_of(np.uint64(key), parts)
    assert 0 <= share < parts
    assert share <= share_of(np.uint64(min(key + 2**40, 2**64 - 1)), parts)


@given(st.integers(0, 2**63 - 1), st.integers(0, 1000), st.sets(st.integers(0, 10_000), min_size=1))
def test_a_shuffle_holds_every_index_once_and_depends_on_each_value_alone(seed, epoch, members):
    indices = np.array(sorted(members))
    order = shuffled(indices, seed=seed, epoch=epoch, purpose=Purpose.SAMPLES)
    assert sorted(order.tolist()) == indices.tolist()
    # Leaving one index out moves no other: the order does not depend on who else is there.
    fewer = shuffled(indices[1:], seed=seed, epoch=epoch, purpose=Purpose.SAMPLES)
    assert fewer.tolist() == [i for i in order.tolist() if i != indices[0]]


def test_each_purpose_seed_and_epoch_draws_its_own():
    indices = np.arange(100)
    orders = [
        shuffled(indices, seed=seed, epoch=epoch, purpose=purpose).tolist()
        for seed in (0, 1)
        for epoch in (0, 1, 256)
        for purpose in Purpose
    ]
    assert len({tuple(order) for order in orders}) == len(orders) == 24


def test_positions_are_shuffled_evenly():
    # Mean place of the first index over many epochs: uniform on 0..9 has mean 4.5.
    places = [shuffled(np.arange(10), seed=3, epoch=e, purpose=Purpose.SAMPLES).tolist().index(0) for e in range(2000)]
    assert np.mean(places) == pytest.approx(4.5, abs=0.25)
    assert np.bincount(places, minlength=10).min() > 140
