"""What is checked before training holds for plans of every strategy, and not for one that the samples do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from dflash_pipeline.contracts.batching import Strategy
from dflash_pipeline.contracts.corpus import SampleLengths
from dflash_pipeline.recipe import Recipe
from dflash_pipeline.stages import checks
from dflash_pipeline.stages.batching import make_boundaries, make_epochs, make_plan, make_statistics, sample_lengths
from dflash_pipeline.stages.checks import check_every_sample_once, check_token_budget, check_totals
from tests.stages.test_weighted_snapshots import Bench

CHECKS = (check_every_sample_once, check_token_budget, check_totals)


def planned(folder: Path, strategy: str):
    bench = Bench(folder)
    raw = bench.recipe().model_dump()
    raw["batching"] = raw["batching"] | {"strategy": strategy}
    recipe, snapshot = Recipe.model_validate(raw), bench.snapshot()
    boundaries = make_boundaries(recipe, bench.storage, make_statistics(bench.storage, snapshot))
    make_epochs(recipe, bench.storage, snapshot, boundaries, range(2), tell=lambda planned, manifest: None)
    epochs = raw["batching"]["epochs"]
    make_epochs(recipe, bench.storage, snapshot, boundaries, range(2, epochs), tell=lambda planned, manifest: None)
    return bench.storage, snapshot, make_plan(recipe, bench.storage, snapshot, boundaries).record


@pytest.mark.parametrize("strategy", get_args(Strategy))
def test_a_plan_of_any_strategy_holds(tmp_path: Path, strategy: str) -> None:
    storage, snapshot, plan = planned(tmp_path, strategy)
    for check in CHECKS:
        finding = check(storage, snapshot, plan)
        assert finding.holds, finding.seen


@pytest.mark.parametrize("strategy", ["window", "varlen"])
def test_samples_longer_than_their_row_are_seen(tmp_path: Path, monkeypatch, strategy: str) -> None:
    storage, snapshot, plan = planned(tmp_path, strategy)

    def longer(*inputs) -> SampleLengths:
        found = sample_lengths(*inputs)
        return SampleLengths(
            snapshot=found.snapshot,
            num_tokens=np.asarray(found.num_tokens) + 1,
            num_supervised=np.asarray(found.num_supervised),
        )

    monkeypatch.setattr(checks, "sample_lengths", longer)
    finding = check_token_budget(storage, snapshot, plan)
    assert not finding.holds
    assert "epoch 0" in finding.seen
