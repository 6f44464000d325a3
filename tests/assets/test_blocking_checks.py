"""A manifest that is falsified after the plan was sealed never reaches training."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import dagster as dg
import numpy as np
import pytest

from dflash_pipeline.assets.catalogue import definitions_for
from dflash_pipeline.assets.plan import epoch_range_tags
from dflash_pipeline.assets.resources import Workbench
from dflash_pipeline.contracts.manifest import EpochManifest
from dflash_pipeline.stages import batching
from dflash_pipeline.store.plans import load_epoch, plan_folder, save_epoch


def forged(manifest: EpochManifest, **columns: object) -> EpochManifest:
    """A manifest with other columns, without the invariants that its construction would check."""
    forgery = object.__new__(EpochManifest)
    for field in fields(EpochManifest):
        object.__setattr__(forgery, field.name, columns.get(field.name, getattr(manifest, field.name)))
    return forgery


def with_a_sample_missing(manifest: EpochManifest) -> EpochManifest:
    """One sample is gone, and the manifest claims a corpus smaller by one: consistent in itself."""
    sizes = np.diff(manifest.offsets)
    owner = int(sizes.argmax())
    at = int(manifest.offsets[owner])
    last = manifest.num_corpus_samples - 1
    gone, ids = manifest.sample_ids[at], np.delete(manifest.sample_ids, at)
    ids[ids == last] = gone
    sizes[owner] -= 1
    tokens = np.minimum(manifest.num_tokens, sizes.reshape(manifest.num_tokens.shape) * manifest.padded_length)
    same = {field.name: getattr(manifest, field.name) for field in fields(EpochManifest)}
    return EpochManifest(
        **same
        | {
            "num_corpus_samples": last,
            "sample_ids": ids,
            "offsets": np.concatenate(([0], np.cumsum(sizes))),
            "num_tokens": tokens,
            "supervised_tokens": np.minimum(manifest.supervised_tokens, tokens),
        }
    )


def with_a_sample_doubled(manifest: EpochManifest) -> EpochManifest:
    ids = manifest.sample_ids.copy()
    ids[1] = ids[0]
    return forged(manifest, sample_ids=ids)


def over_budget(manifest: EpochManifest) -> EpochManifest:
    """Padded to more than the plan allows; the manifest itself claims a larger budget."""
    return forged(manifest, padded_length=manifest.padded_length * 4, token_budget=manifest.token_budget * 4)


def padded_too_short(manifest: EpochManifest) -> EpochManifest:
    shorter = manifest.padded_length - 1
    sizes = np.diff(manifest.offsets).reshape(shorter.shape)
    return forged(manifest, padded_length=shorter, num_tokens=np.minimum(manifest.num_tokens, sizes * shorter))


def miscounted(manifest: EpochManifest) -> EpochManifest:
    return forged(manifest, supervised_tokens=manifest.supervised_tokens - 1)


Falsify = Callable[[EpochManifest], EpochManifest]


@pytest.fixture
def run_chain(chain, tmp_path, monkeypatch):
    copy = chain.copy(tmp_path / "storage")
    workbench = Workbench(recipe=copy.recipe, storage=copy.storage)
    make_plan = batching.make_plan

    def run(falsify: Falsify | None) -> dg.ExecuteInProcessResult:
        def make_then_falsify(recipe, storage, snapshot, boundaries):
            made = make_plan(recipe, storage, snapshot, boundaries)
            folder: Path = plan_folder(storage.plans, snapshot=snapshot.fingerprint, spec=made.record.spec)
            if falsify:
                save_epoch(folder, falsify(load_epoch(folder, 1)))
            return made

        monkeypatch.setattr(batching, "make_plan", make_then_falsify)
        with dg.DagsterInstance.ephemeral() as instance:
            return (
                definitions_for(workbench)
                .resolve_job_def("whole_chain")
                .execute_in_process(
                    instance=instance,
                    tags=epoch_range_tags(2),
                    asset_selection=[dg.AssetKey("run_plan"), dg.AssetKey("trained_drafter")],
                    raise_on_error=False,
                )
            )

    return run


def passed(result: dg.ExecuteInProcessResult) -> dict[str, bool]:
    return {evaluation.check_name: evaluation.passed for evaluation in result.get_asset_check_evaluations()}


def started(result: dg.ExecuteInProcessResult) -> set[str]:
    return {event.step_key for event in result.all_events if event.is_step_start}


@pytest.mark.parametrize(
    ("falsify", "check"),
    [
        (with_a_sample_missing, "every_sample_once"),
        (with_a_sample_doubled, "every_sample_once"),
        (over_budget, "token_budget_respected"),
        (padded_too_short, "token_budget_respected"),
        (miscounted, "totals_agree"),
    ],
)
def test_a_false_manifest_stops_before_training(run_chain, falsify, check):
    result = run_chain(falsify)
    assert not result.success
    assert passed(result)[check] is False
    assert "trained_drafter" not in started(result)
    seen = {e.check_name: e.description for e in result.get_asset_check_evaluations()}
    assert seen[check].startswith("epoch 1")


def test_a_true_one_passes_and_training_is_reached(run_chain):
    result = run_chain(None)
    assert result.success
    assert {"every_sample_once", "token_budget_respected", "totals_agree"} <= passed(result).keys()
    assert all(passed(result).values())
    assert "trained_drafter" in started(result)
