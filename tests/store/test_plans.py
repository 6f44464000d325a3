"""Plans on disk: what is read is what was written, byte for byte, or it is refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings

from dflash_pipeline.contracts.batching import BatchingSpec, CostModel
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.manifest import COLUMNS, EpochManifest
from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.planning.manifest import build_epoch_manifest
from dflash_pipeline.store.plans import (
    SCHEMA,
    _sealed,
    epoch_file,
    load_epoch,
    load_or_set_aside,
    load_plan,
    load_planned_epoch,
    plan_folder,
    save_epoch,
    save_spec,
    seal_plan,
)
from dflash_pipeline.store.records import load_record
from tests.strategies import corpora, met, must_meet, samples_of, specs, with_corners

SAMPLES = samples_of([1 + i * i % 30 for i in range(90)])
SPEC = BatchingSpec(
    strategy="bucket",
    token_budget=60,
    slots_per_step=4,
    boundaries=(10, 30),
    cost=CostModel(quadratic_length=100.0, anchor_cost=0.1),
    seed=5,
)


def built(epoch: int, spec: BatchingSpec = SPEC) -> EpochManifest:
    return build_epoch_manifest(SAMPLES, spec, epoch=epoch)


def sealed(folder: Path, num_epochs: int, spec: BatchingSpec = SPEC) -> RunPlan:
    """Write the epochs that are not there yet, as the stage does, and seal them."""
    summaries = []
    for epoch in range(num_epochs):
        manifest = load_or_set_aside(folder, epoch)
        if manifest is None:
            manifest = built(epoch, spec)
            save_epoch(folder, manifest)
        summaries.append(manifest.summary())
    plan = RunPlan(snapshot="snapshot", spec=spec, epochs=tuple(summaries))
    seal_plan(folder, plan)
    return plan


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in sorted(folder.iterdir())}


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


@must_meet("fillers", "dropped", "several steps")
@settings(max_examples=25)
@with_corners()
@given(corpora(), specs())
def test_a_round_trip_gives_every_column_back(samples, spec):
    try:
        manifest = build_epoch_manifest(samples, spec, epoch=7)
    except Refused:
        assume(False)
    met("fillers", when=bool(manifest.filler.any()))
    met("dropped", when=manifest.dropped.size > 0)
    met("several steps", when=manifest.num_steps > 1)
    with TemporaryDirectory() as folder:
        save_epoch(Path(folder), manifest)
        read = load_epoch(Path(folder), 7)
    assert read.digest() == manifest.digest()
    for name, kind in COLUMNS.items():
        column = getattr(read, name)
        assert column.dtype == kind
        np.testing.assert_array_equal(column, getattr(manifest, name))
    assert (read.epoch, read.num_corpus_samples, read.slots_per_step, read.token_budget) == (
        7,
        manifest.num_corpus_samples,
        manifest.slots_per_step,
        manifest.token_budget,
    )
    assert read.summary() == manifest.summary()


def test_the_same_epoch_is_the_same_file(tmp_path):
    for folder in ("one", "two"):
        save_epoch(tmp_path / folder, built(0))
    assert epoch_file(tmp_path / "one", 0).read_bytes() == epoch_file(tmp_path / "two", 0).read_bytes()
    save_epoch(tmp_path / "three", load_epoch(tmp_path / "one", 0))
    assert epoch_file(tmp_path / "three", 0).read_bytes() == epoch_file(tmp_path / "one", 0).read_bytes()


def test_anyone_can_read_the_parquet(tmp_path):
    manifest = built(0)
    save_epoch(tmp_path, manifest)
    table = pq.read_table(epoch_file(tmp_path, 0))
    assert table.schema.names == SCHEMA.names
    row = table.slice(5, 1).to_pylist()[0]
    batch = manifest.micro_batch(1, 1)
    assert (row["epoch"], row["step"], row["slot"], row["filler"]) == (0, 1, 1, batch.filler)
    assert (row["sample_ids"], row["padded_length"]) == (batch.sample_ids.tolist(), batch.padded_length)
    assert (row["num_tokens"], row["supervised_tokens"], row["cost"]) == (
        batch.num_tokens,
        batch.supervised_tokens,
        batch.cost,
    )


def test_any_flipped_byte_is_refused_by_name(tmp_path):
    save_epoch(tmp_path, built(0))
    path = epoch_file(tmp_path, 0)
    whole = path.read_bytes()
    for at in range(0, len(whole), 41):
        flip(path, at)
        with pytest.raises(Refused, match="do not match the hash") as refused:
            load_epoch(tmp_path, 0)
        assert refused.value.where == str(path)
        path.write_bytes(whole)
    assert load_epoch(tmp_path, 0).digest() == built(0).digest()


@pytest.mark.parametrize("damage", [b"", b"PAR1", b"not a file of ours" * 50])
def test_what_is_no_manifest_is_refused(tmp_path, damage):
    epoch_file(tmp_path, 0).write_bytes(damage)
    with pytest.raises(Refused, match=r"epoch-000\.parquet"):
        load_epoch(tmp_path, 0)


def test_a_file_cut_short_is_refused(tmp_path):
    save_epoch(tmp_path, built(0))
    path = epoch_file(tmp_path, 0)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(Refused, match=r"epoch-000\.parquet"):
        load_epoch(tmp_path, 0)


def test_a_damaged_file_is_set_aside_and_rebuilt(tmp_path):
    plan = sealed(tmp_path, 3)
    path = epoch_file(tmp_path, 1)
    whole = path.read_bytes()
    flip(path, len(whole) // 2)
    damaged = path.read_bytes()
    assert load_or_set_aside(tmp_path, 1) is None
    assert not path.exists()
    assert path.with_name("epoch-001.parquet.damaged-1").read_bytes() == damaged
    assert sealed(tmp_path, 3) == plan
    assert path.read_bytes() == whole


def test_a_missing_epoch_is_refused_by_name_and_simply_absent_for_a_stage(tmp_path):
    with pytest.raises(Refused, match=r"epoch-004\.parquet: this epoch has no manifest"):
        load_epoch(tmp_path, 4)
    assert load_or_set_aside(tmp_path, 4) is None


def test_a_file_under_another_epochs_name_is_refused(tmp_path):
    save_epoch(tmp_path, built(0))
    epoch_file(tmp_path, 0).rename(epoch_file(tmp_path, 1))
    with pytest.raises(Refused, match=r"epoch-001\.parquet: it holds epoch 0"):
        load_epoch(tmp_path, 1)


def test_six_epochs_become_eight_by_adding_two(tmp_path):
    six = sealed(tmp_path, 6)
    before = contents(tmp_path)
    eight = sealed(tmp_path, 8)
    after = contents(tmp_path)
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {
        "epoch-006.parquet",
        "epoch-007.parquet",
        f"plan-{eight.fingerprint}.json",
    }
    assert eight.epochs[:6] == six.epochs
    assert load_plan(tmp_path, six.fingerprint) == six
    assert load_plan(tmp_path, eight.fingerprint) == eight
    assert load_plan(tmp_path) == eight


def test_a_sealed_plan_gives_its_epochs(tmp_path):
    plan = sealed(tmp_path, 2)
    assert load_plan(tmp_path) == plan
    for epoch in range(2):
        assert load_planned_epoch(tmp_path, plan, epoch).summary() == plan.epochs[epoch]


def test_an_epoch_in_another_order_is_not_the_sealed_one(tmp_path):
    plan = sealed(tmp_path, 2)
    save_epoch(tmp_path, built(1, replace(SPEC, seed=6)))
    assert load_planned_epoch(tmp_path, plan, 0).digest() == plan.epochs[0].digest
    with pytest.raises(Refused, match=rf"epoch-001\.parquet: it is not the epoch that plan {plan.fingerprint} sealed"):
        load_planned_epoch(tmp_path, plan, 1)


def test_an_altered_seal_is_refused(tmp_path):
    plan = sealed(tmp_path, 2)
    path = tmp_path / f"plan-{plan.fingerprint}.json"
    path.write_text(path.read_text().replace('"seed": 5', '"seed": 6'))
    with pytest.raises(Refused, match=r"its content has the fingerprint"):
        load_plan(tmp_path, plan.fingerprint)
    with pytest.raises(Refused, match="no RunPlan here"):
        load_plan(tmp_path, "0" * 16)


def test_rules_are_kept_beside_the_epochs(tmp_path):
    save_spec(tmp_path, SPEC)
    assert load_record(tmp_path / "spec.json", BatchingSpec) == SPEC


def test_a_folder_is_named_by_snapshot_and_rules_not_by_epochs():
    folder = plan_folder(Path("plans"), snapshot="a", spec=SPEC)
    assert folder == plan_folder(Path("plans"), snapshot="a", spec=replace(SPEC))
    assert folder.parent == Path("plans")
    others = {
        plan_folder(Path("plans"), snapshot="b", spec=SPEC),
        plan_folder(Path("plans"), snapshot="a", spec=replace(SPEC, seed=6)),
    }
    assert len(others | {folder}) == 3


@pytest.mark.parametrize("column", ["step", "slot", "epoch", "name"])
def test_rows_that_are_not_an_epoch_are_refused_although_the_hash_is_right(tmp_path, column):
    """A file written by another program: whole, but not what we write."""
    save_epoch(tmp_path, built(0))
    path = epoch_file(tmp_path, 0)
    table = pq.read_table(path)
    metadata = table.schema.metadata
    if column == "name":
        table = table.rename_columns(["other", *table.column_names[1:]])
    else:
        place = table.column_names.index(column)
        table = table.set_column(place, column, pa.array(table[column].to_numpy() + 1))
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata(metadata), sink)
    path.write_bytes(_sealed(sink.getvalue().to_pybytes()))
    with pytest.raises(Refused, match=r"epoch-000\.parquet"):
        load_epoch(tmp_path, 0)
