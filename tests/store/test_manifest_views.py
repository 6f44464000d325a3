"""Manifests by SQL say what the manifests themselves say."""

from __future__ import annotations

from pathlib import Path

from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.planning.manifest import build_epoch_manifest
from dflash_pipeline.store.plans import plan_folder, save_epoch, save_spec, seal_plan
from dflash_pipeline.store.warehouse import Warehouse
from tests.strategies import samples_of, spec_of

SAMPLES = samples_of([1 + i * 7 % 40 for i in range(60)])
SPEC = spec_of("window", token_budget=120, slots_per_step=2)


def planned(plans: Path, epochs: int) -> RunPlan:
    folder = plan_folder(plans, snapshot="snapshot", spec=SPEC)
    save_spec(folder, SPEC)
    manifests = [build_epoch_manifest(SAMPLES, SPEC, epoch=epoch) for epoch in range(epochs)]
    for manifest in manifests:
        save_epoch(folder, manifest)
    plan = RunPlan(snapshot="snapshot", spec=SPEC, epochs=tuple(m.summary() for m in manifests))
    seal_plan(folder, plan)
    return plan


def test_where_a_sample_was_and_with_whom(tmp_path):
    storage = tmp_path / "it's here"
    storage.mkdir()
    warehouse = Warehouse(storage / "warehouse.duckdb")
    plan = planned(storage / "plans", 2)
    warehouse.save_plan(plan, plans=storage / "plans")

    def asked(question: str) -> list[tuple]:
        return warehouse.database.read(lambda connection: connection.execute(question, [plan.fingerprint]).fetchall())

    where = asked(
        """SELECT epoch, step, slot FROM scheduled_samples JOIN plans ON folder = plan_folder
           WHERE fingerprint = ? AND sample_id = 17 AND NOT filler ORDER BY epoch"""
    )
    companions = asked(
        """SELECT DISTINCT b.sample_id
           FROM scheduled_samples a JOIN scheduled_samples b USING (plan_folder, epoch, step, slot)
           JOIN plans ON folder = plan_folder
           WHERE fingerprint = ? AND a.sample_id = 17 AND b.sample_id <> 17 ORDER BY 1"""
    )
    expected, found = [], set()
    for epoch in range(2):
        manifest = build_epoch_manifest(SAMPLES, SPEC, epoch=epoch)
        for step in range(manifest.num_steps):
            for batch in manifest.step_batches(step):
                if 17 in batch.sample_ids:
                    expected.append((epoch, step, batch.slot))
                    found |= set(batch.sample_ids.tolist()) - {17}
    assert where == expected
    assert [sample for (sample,) in companions] == sorted(found)
    tokens = asked("SELECT sum(num_tokens) FROM micro_batches JOIN plans ON folder = plan_folder WHERE fingerprint = ?")
    assert tokens == [(2 * int(SAMPLES.num_tokens.sum()),)]


def test_a_plan_without_manifests_makes_no_view(tmp_path):
    warehouse = Warehouse(tmp_path / "warehouse.duckdb")
    plan = planned(tmp_path / "plans", 1)
    warehouse.save_plan(plan, plans=tmp_path / "elsewhere")
    views = warehouse.database.read(
        lambda connection: connection.execute("SELECT count(*) FROM duckdb_views() WHERE NOT internal").fetchall()
    )
    assert views == [(0,)]
