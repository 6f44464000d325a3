"""What a dry run says against what planning makes: from a file, from a snapshot, from first rows, or refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dflash_pipeline.contracts.corpus import CorpusSnapshot, SampleLengths
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.contracts.run import Attempt, RunRecord
from dflash_pipeline.planning.lengths import length_statistics
from dflash_pipeline.planning.manifest import build_epoch_manifest
from dflash_pipeline.recipe import Recipe
from dflash_pipeline.stages.batching import batching_spec, recipe_boundaries
from dflash_pipeline.stages.dry_run import dry_run
from dflash_pipeline.stages.dry_run.hours import HISTORY
from dflash_pipeline.stages.dry_run.memory import Item
from dflash_pipeline.stages.dry_run.room import no_room
from dflash_pipeline.stages.launch_config import launch_config
from dflash_pipeline.stages.plan_files import read_lengths
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.plans import plan_folder, save_epoch, save_spec, seal_plan
from dflash_pipeline.store.records import load_record, save_record
from tests.conftest import ROOT
from tests.stages.preflight_cases import recipe, spoiled_target, with_rows

NO_SOURCE = {"sources": [{"path": "nosuch.jsonl"}]}


def said(asked: Recipe, folder: Path, lengths: Path | None = None) -> dict[str, Any]:
    return dry_run(asked, Storage(root=folder / "storage"), lengths, known={})


def lengths_file(folder: Path, num_samples: int = 500) -> Path:
    """Lengths of which about half the tokens are supervised."""
    lengths = np.random.default_rng(0).integers(20, 192, num_samples)
    path = folder / "lengths.parquet"
    pq.write_table(pa.table({"length": lengths, "supervised": lengths // 2}), path)
    return path


def planned(asked: Recipe, samples: SampleLengths) -> tuple[RunPlan, list[Any]]:
    spec = batching_spec(asked, recipe_boundaries(asked, length_statistics(samples)))
    manifests = [build_epoch_manifest(samples, spec, epoch=epoch) for epoch in range(asked.batching.epochs)]
    plan = RunPlan(snapshot=samples.snapshot, spec=spec, epochs=tuple(m.summary() for m in manifests))
    return plan, manifests


@pytest.mark.parametrize("strategy", ["window", "bucket", "varlen"])
def test_steps_are_those_of_a_real_plan_for_the_same_lengths(tmp_path: Path, strategy: str) -> None:
    asked = recipe(tmp_path, data=NO_SOURCE, batching={"strategy": strategy, "epochs": 3})
    file = lengths_file(tmp_path)
    found = said(asked, tmp_path, file)
    plan, manifests = planned(asked, read_lengths(file))
    assert [epoch["num_steps"] for epoch in found["epochs"]] == [manifest.num_steps for manifest in manifests]
    assert found["total_steps"] == plan.total_steps
    assert found["num_micro_batches"] == sum(int((~manifest.filler).sum()) for manifest in manifests)
    assert [epoch["real_tokens"] for epoch in found["epochs"]] == [int(read_lengths(file).num_tokens.sum())] * 3
    assert found["boundaries"] == [0, *plan.spec.boundaries]
    assert (found["snapshot"], found["plan"], found["lengths"]["estimated"]) == (None, None, False)


def test_the_largest_micro_batch_is_in_the_plan(tmp_path: Path) -> None:
    asked, file = recipe(tmp_path, data=NO_SOURCE), lengths_file(tmp_path)
    found = said(asked, tmp_path, file)["memory"]
    assert found["bytes_per_rank"] == sum(item["bytes"] for item in found["items"])
    assert all(item["bytes"] > 0 for item in found["items"])
    batch = found["largest_micro_batch"]
    manifest = planned(asked, read_lengths(file))[1][batch["epoch"]].micro_batch(batch["step"], batch["slot"])
    assert (manifest.sample_ids.size, manifest.padded_length) == (batch["num_samples"], batch["padded_length"])


def test_memory_is_that_of_the_largest_micro_batch_of_all_epochs(tmp_path: Path) -> None:
    file = lengths_file(tmp_path, 60)
    sizes = []
    for epochs in (1, 2, 4, 8, 16):
        asked = recipe(tmp_path, data=NO_SOURCE, batching={"strategy": "shuffle", "epochs": epochs})
        sizes.append(said(asked, tmp_path, file)["memory"]["bytes_per_rank"])
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]


def test_settings_change_the_parts_that_they_are_about(tmp_path: Path) -> None:
    file = lengths_file(tmp_path)

    def parts(**training: Any) -> dict[str, int]:
        asked = recipe(tmp_path, data=NO_SOURCE, drafter={"num_layers": 3, "tap_layer_ids": [0, 2]}, training=training)
        return {item["what"]: item["bytes"] for item in said(asked, tmp_path, file)["memory"]["items"]}

    plain, on_cuda = parts(), parts(device="cuda")
    assert on_cuda["target"] == plain["target"] / 2
    assert on_cuda["weights rounded"] == on_cuda["drafter weights"] / 2 == plain["drafter weights"] / 2
    assert on_cuda["activations"] < plain["activations"]
    assert parts(activation_checkpointing=True)["activations"] < plain["activations"] / 2
    assert parts(kl=0.5)["logits"] > plain["logits"]
    in_parts = parts(drafter_sharding="fsdp", num_ranks=4)
    assert in_parts["moments"] == plain["moments"] / 4
    assert in_parts["target"] == plain["target"] > parts(target_sharding="fsdp", num_ranks=4)["target"]
    assert parts(drafter_sharding="fsdp", target_sharding="fsdp", num_ranks=1) == parts(num_ranks=1)


def test_the_sources_are_counted_whole_where_they_are_small(tmp_path: Path) -> None:
    rows = [{"question": f"What is {n}?", "answer": "It is a number. " * (n % 5 + 1)} for n in range(40)]
    data = with_rows(tmp_path, "rows.jsonl", rows) | {"validation_fraction": 0.25}
    found = said(recipe(tmp_path, data=data, responses={"enabled": False}), tmp_path)
    assert (found["lengths"]["origin"], found["lengths"]["estimated"]) == ("sources", True)
    assert found["lengths"]["num_samples"] == 30
    assert "first 40 rows" in found["lengths"]["says"]


def test_large_sources_are_estimated_by_their_size(tmp_path: Path) -> None:
    rows = [{"question": f"What is {n}?", "answer": "It is a number of mine. " * 20} for n in range(6000)]
    data = with_rows(tmp_path, "rows.jsonl", rows) | {"validation_fraction": 0.0}
    asked = recipe(tmp_path, data=data, evaluation={"prompts": str(ROOT / "examples/conversations/gsm8k_test.jsonl")})
    found = said(asked, tmp_path)
    assert found["lengths"]["num_samples"] == pytest.approx(6000, rel=0.15)
    half = said(recipe(tmp_path, data=data | {"sources": [{"path": "rows.jsonl", "weight": 0.5}]}), tmp_path)
    assert half["lengths"]["num_samples"] == pytest.approx(found["lengths"]["num_samples"] / 2, abs=1)
    assert "the target's own will differ" in found["lengths"]["says"]


def test_without_data_it_says_what_to_give(tmp_path: Path) -> None:
    known: dict[str, Any] = {}
    with pytest.raises(Refused, match="no lengths are known: there is no such file") as refused:
        dry_run(recipe(tmp_path, data=NO_SOURCE), Storage(root=tmp_path / "storage"), None, known=known)
    assert refused.value.where.endswith("nosuch.jsonl")
    assert "--lengths FILE" in refused.value.fix
    assert [fault["what"] for fault in known["faults"]] == ["there is no such file"]


def test_a_config_alone_is_target_enough(tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.json").write_bytes((ROOT / "examples/target/config.json").read_bytes())
    bare = recipe(tmp_path, data=NO_SOURCE, target={"path": "bare"}, drafter={"mask_token_id": 3})
    whole = recipe(tmp_path, data=NO_SOURCE, drafter={"mask_token_id": 3})
    file = lengths_file(tmp_path)
    found = said(bare, tmp_path, file)
    assert found["memory"] == said(whole, tmp_path, file)["memory"]
    assert {"there are no *.safetensors weights", "there is no such file"} <= {f["what"] for f in found["faults"]}


def test_a_target_without_config_is_refused(tmp_path: Path) -> None:
    missing = recipe(tmp_path, data=NO_SOURCE, target={"path": "nosuch"})
    with pytest.raises(Refused, match=r"there is no config\.json"):
        said(missing, tmp_path, lengths_file(tmp_path))
    strange = recipe(tmp_path, data=NO_SOURCE, target=spoiled_target(tmp_path, config={"model_type": "t5"}))
    with pytest.raises(Refused, match="no causal model is made of it"):
        said(strange, tmp_path, lengths_file(tmp_path))


def test_what_planning_refuses_is_refused(tmp_path: Path) -> None:
    tight = recipe(tmp_path, data=NO_SOURCE, batching={"token_budget": 100})
    with pytest.raises(Refused, match="above the token budget of 100"):
        said(tight, tmp_path, lengths_file(tmp_path))


def test_hours_are_the_historys_until_steps_were_measured(tmp_path: Path) -> None:
    file = lengths_file(tmp_path)
    tokens = 2 * int(read_lengths(file).num_tokens.sum())
    on_gpus = recipe(tmp_path, data=NO_SOURCE, training={"device": "cuda", "num_ranks": 8})
    hours = said(on_gpus, tmp_path, file)["hours"]
    assert hours["origin"] == "history"
    assert (hours["high"], hours["low"]) == pytest.approx(tuple(tokens / rate / 3600 for rate in HISTORY))
    fewer = said(recipe(tmp_path, data=NO_SOURCE, training={"device": "cuda", "num_ranks": 2}), tmp_path, file)["hours"]
    assert fewer["low"] == pytest.approx(4 * hours["low"])
    assert "times 0.25" in fewer["says"]
    on_cpu = said(recipe(tmp_path, data=NO_SOURCE), tmp_path, file)["hours"]
    assert (on_cpu["origin"], on_cpu["low"], on_cpu["high"]) == ("unknown", None, None)


def test_measured_steps_replace_the_history(tmp_path: Path) -> None:
    """A run whose every step took 2 ms a padded token of its slower rank: so does the whole plan, to the second."""
    asked, file = recipe(tmp_path, data=NO_SOURCE, batching={"epochs": 1}), lengths_file(tmp_path, 2000)
    seconds = leave_a_run(asked, Storage(root=tmp_path / "storage"), read_lengths(file), per_token=2e-3)
    hours = said(asked, tmp_path, file)["hours"]
    assert hours["origin"] == "measured"
    assert hours["low"] == hours["high"] == pytest.approx(seconds / 3600, rel=1e-6)
    other_drafter = recipe(tmp_path, data=NO_SOURCE, batching={"epochs": 1}, drafter={"block_size": 8})
    assert said(other_drafter, tmp_path, file)["hours"]["origin"] == "unknown"


def leave_a_run(asked: Recipe, storage: Storage, samples: SampleLengths, *, per_token: float) -> float:
    """A plan and an event log as a finished run leaves them; seconds of its steps, all added up."""
    plan, [manifest] = planned(asked, samples)
    folder = plan_folder(storage.plans, snapshot=plan.snapshot, spec=plan.spec)
    save_spec(folder, plan.spec)
    save_epoch(folder, manifest)
    seal_plan(folder, plan)
    snapshot = CorpusSnapshot(
        **dict.fromkeys(("ingestion", "tokenizer", "template", "answers"), ""),
        fingerprint=plan.snapshot,
        max_length=192,
        num_train_samples=samples.num_tokens.size,
        num_validation_samples=0,
        num_tokens=int(samples.num_tokens.sum()),
        num_supervised_tokens=1,
        dropped=(),
        shards=(),
    )
    config = launch_config(asked, storage, snapshot, plan, fresh=False)
    run_dir = Path(config.run_dir)
    save_record(run_dir / "launch.json", config)
    attempt = Attempt(number=1, num_ranks=2, first_step=0, status="finished", last_step=plan.total_steps)
    record = RunRecord(run=config.run, plan=plan.fingerprint, target=config.target, total_steps=plan.total_steps)
    save_record(run_dir / "run.json", replace(record, attempts=(attempt,)))
    of_ranks = manifest.padded_tokens.reshape(manifest.num_steps, -1, 2).sum(axis=1)
    seconds = per_token * of_ranks.max(axis=1)
    assert manifest.num_steps > 25
    lines = [
        {"kind": "step", "attempt": 1, "epoch": 0, "step": step, "global_step": step + 1, "seconds": float(took)}
        for step, took in enumerate(seconds)
    ]
    (run_dir / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return float(seconds.sum())


def test_steps_of_every_attempt_are_measured_ones(tmp_path: Path) -> None:
    """A run that stopped late and was resumed for a few steps has not lost its times."""
    asked, file = recipe(tmp_path, data=NO_SOURCE, batching={"epochs": 1}), lengths_file(tmp_path, 2000)
    storage = Storage(root=tmp_path / "storage")
    seconds = leave_a_run(asked, storage, read_lengths(file), per_token=2e-3)
    [events] = storage.runs.glob("*/events.jsonl")
    [record] = storage.runs.glob("*/run.json")
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    for line in lines[-8:]:
        line["attempt"] = 2
    events.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = load_record(record, RunRecord)
    second = replace(run.attempts[0], number=2, first_step=len(lines) - 8)
    save_record(record, replace(run, attempts=(*run.attempts, second)))
    hours = said(asked, tmp_path, file)["hours"]
    assert hours["origin"] == "measured"
    assert hours["low"] == pytest.approx(seconds / 3600, rel=1e-6)


def test_times_of_a_run_with_another_forward_are_not_taken(tmp_path: Path) -> None:
    asked, file = recipe(tmp_path, data=NO_SOURCE, batching={"epochs": 1}), lengths_file(tmp_path, 2000)
    leave_a_run(asked, Storage(root=tmp_path / "storage"), read_lengths(file), per_token=2e-3)
    with_kl = recipe(tmp_path, data=NO_SOURCE, batching={"epochs": 1}, training={"kl": 0.5})
    assert said(with_kl, tmp_path, file)["hours"]["origin"] == "unknown"


def test_lengths_of_a_file_are_cut_as_ingestion_would(tmp_path: Path) -> None:
    file = lengths_file(tmp_path)
    lengths = read_lengths(file).num_tokens
    cut = said(recipe(tmp_path, data=NO_SOURCE | {"max_length": 64}), tmp_path, file)["lengths"]
    assert cut["num_tokens"] == int(np.minimum(lengths, 64).sum())
    dropped = said(recipe(tmp_path, data=NO_SOURCE | {"max_length": 64, "overlong": "drop"}), tmp_path, file)["lengths"]
    assert dropped["num_samples"] == int((lengths <= 64).sum())
    with pytest.raises(Refused, match="all 500 samples are longer"):
        said(recipe(tmp_path, data=NO_SOURCE | {"max_length": 16, "overlong": "drop"}), tmp_path, file)


def test_a_file_without_a_supervised_token_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "none.parquet"
    pq.write_table(pa.table({"length": [20, 30], "supervised": [0, 0]}), path)
    with pytest.raises(Refused, match="no token of it is supervised"):
        said(recipe(tmp_path, data=NO_SOURCE), tmp_path, path)


def test_what_does_not_fit_is_a_fault(tmp_path: Path) -> None:
    asked = recipe(tmp_path, data=NO_SOURCE, training={"feature_cache_gib": 1e-6, "max_steps": 3})
    found = said(asked, tmp_path, lengths_file(tmp_path))
    assert "training.feature_cache_gib" in [fault["where"] for fault in found["faults"]]
    assert found["stops_after"] == 3
    item = Item(what="plan", num_bytes=2**40, how="")
    [full] = no_room([item], 2**30, cache_gib=None, storage=tmp_path)
    assert full.where == str(tmp_path)
    assert not [*no_room([item], 2**40, cache_gib=None, storage=tmp_path)]


def test_storage_counts_what_the_recipe_keeps(tmp_path: Path) -> None:
    file = lengths_file(tmp_path)

    def bytes_of(what: str, **training: Any) -> int:
        items = said(recipe(tmp_path, data=NO_SOURCE, training=training), tmp_path, file)["storage"]["items"]
        return sum(item["bytes"] for item in items if item["what"] == what)

    export = bytes_of("export")
    assert bytes_of("checkpoints", keep_checkpoints=2) == 9 * export
    assert bytes_of("checkpoints", keep_checkpoints=-1) == 3 * export * (2 + 1)
    assert bytes_of("features") == 0
    tokens = int(read_lengths(file).num_tokens.sum())
    assert bytes_of("features", feature_cache_gib=1.0) == tokens * 2 * 128 * 4


def test_nothing_is_written(tmp_path: Path) -> None:
    asked, file = recipe(tmp_path, data=NO_SOURCE), lengths_file(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    said(asked, tmp_path, file)
    assert sorted(tmp_path.rglob("*")) == before
