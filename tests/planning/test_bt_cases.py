"""Every `bt_` case of tests/cases: lengths and rules in, the manifests that must come out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dflash_pipeline.contracts.batching import BatchingSpec, OverlongPolicy, Strategy, TailPolicy
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.manifest import EpochManifest
from dflash_pipeline.planning.boundaries import optimise_boundaries
from dflash_pipeline.planning.lengths import length_statistics
from dflash_pipeline.planning.manifest import build_epoch_manifest
from tests.strategies import samples_of

CASES = Path(__file__).parents[1] / "cases"
STRATEGIES: tuple[Strategy, ...] = ("sorted", "shuffle", "bucket")


def case(name: str) -> dict[str, Any]:
    return json.loads((CASES / f"{name}.json").read_text(encoding="utf-8"))


def manifest_of(
    given: dict[str, Any],
    strategy: Strategy,
    *,
    epoch: int = 0,
    tail: TailPolicy = "fill",
    overlong: OverlongPolicy = "refuse",
) -> EpochManifest:
    samples = samples_of(given["lengths"])
    spec = BatchingSpec(
        strategy=strategy,
        token_budget=given["budget"],
        slots_per_step=given["world_size"],
        boundaries=optimise_boundaries(length_statistics(samples), num_buckets=given.get("buckets", 6)),
        seed=given["seed"],
        tail=tail,
        overlong=overlong,
    )
    return build_epoch_manifest(samples, spec, epoch=epoch)


def scheduled(manifest: EpochManifest) -> list[int]:
    """Ids of all real samples, sorted."""
    real = ~np.repeat(manifest.filler.ravel(), np.diff(manifest.offsets))
    return sorted(manifest.sample_ids[real].tolist())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_overlong_sample(strategy):
    given = case("bt_overlong_sample")
    dropping = manifest_of(given, strategy, overlong="drop")
    assert scheduled(dropping) == [0, 2, 3, 4]
    assert dropping.dropped.tolist() == [1, 5]
    with pytest.raises(Refused, match="samples 1, 5 are above the token budget of 4096"):
        manifest_of(given, strategy)
    # Truncation is ingestion's: the plan then meets lengths that fit.
    cut = manifest_of({**given, "lengths": [min(length, 4096) for length in given["lengths"]]}, strategy)
    assert scheduled(cut) == [0, 1, 2, 3, 4, 5]


def test_padded_budget():
    manifest = manifest_of(case("bt_padded_budget"), "sorted")
    batches = [ids.tolist() for ids in np.split(manifest.sample_ids, manifest.offsets[1:-1])]
    assert sorted(batches) == [[0], [1, 2, 3], [4]]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_many_buckets(strategy):
    given = case("bt_many_buckets")
    for epoch in range(3):
        assert scheduled(manifest_of(given, strategy, epoch=epoch)) == list(range(len(given["lengths"])))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_uneven_ranks(strategy):
    given = case("bt_uneven_ranks")
    filled = manifest_of(given, strategy)
    assert (filled.num_steps, int(filled.filler.sum())) == (4, 3)
    assert scheduled(filled) == list(range(13))
    dropping = manifest_of(given, strategy, tail="drop")
    assert (dropping.num_steps, dropping.dropped.size, int(dropping.filler.sum())) == (3, 1, 0)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_epoch_order(strategy):
    given = case("bt_epoch_order")
    epochs = [manifest_of(given, strategy, epoch=epoch) for epoch in given["epochs"]]
    assert [scheduled(epoch) for epoch in epochs] == [list(range(64))] * 4
    assert epochs[0].digest() == epochs[3].digest()
    assert len({epoch.sample_ids.tobytes() for epoch in epochs}) == 3


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_all_same_length(strategy):
    given = case("bt_all_same_length")
    statistics = length_statistics(samples_of(given["lengths"]))
    assert optimise_boundaries(statistics, num_buckets=given["buckets"]) == (512,)
    manifest = manifest_of(given, strategy)
    assert (manifest.padded_length.shape, int(manifest.filler.sum())) == ((5, 2), 0)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_empty_and_tiny(strategy):
    given = case("bt_empty_and_tiny")
    empty, one, zeros = ({**given, **inner} for inner in given["cases"])
    with pytest.raises(Refused, match="there are no samples"):
        manifest_of(empty, strategy)
    single = manifest_of(one, strategy)
    assert (single.num_steps, int(single.filler.sum()), scheduled(single)) == (1, 7, [0])
    left = manifest_of(zeros, strategy)
    assert (left.dropped.tolist(), scheduled(left), left.padded_length.size) == ([0, 1], [2], 1)


def test_every_case_is_asked():
    asked = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {path.stem.removeprefix("bt_") for path in CASES.glob("bt_*.json")} <= asked
