"""The whole chain through its Dagster job, with two real ranks: what it leaves in Dagster, MLflow and the storage."""

import math
from pathlib import Path

import dagster as dg
import pytest
from mlflow import MlflowClient

from dflash_pipeline.assets.resources import Workbench
from dflash_pipeline.assets.whole_run import facts as run_facts
from dflash_pipeline.assets.whole_run import run_whole_chain
from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.contracts.run import RunRecord
from dflash_pipeline.store.files import folder_faults
from dflash_pipeline.store.records import load_record
from dflash_pipeline.tracking.mlflow_runs import values_by_step
from dflash_pipeline.tracking.store_uri import tracking_uri
from dflash_pipeline.training.checkpoint import newest_whole_checkpoint
from dflash_pipeline.training.event_log import last_attempt_losses, read_events

ASSETS = (
    "conversations",
    "target_responses",
    "token_sequences",
    "length_statistics",
    "bucket_boundaries",
    "epoch_manifest",
    "run_plan",
    "trained_drafter",
    "exported_drafter",
    "acceptance_report",
    "champion",
    "run_comparison",
)
CHECKS = {
    "preflight",
    "few_rows_rejected",
    "every_sample_once",
    "token_budget_respected",
    "totals_agree",
    "export_drafts_losslessly",
    "export_drafts_as_reported",
    "training_estimate_agrees",
    "losses_went_down",
}


@pytest.fixture(scope="module")
def instance(chain):
    with dg.DagsterInstance.from_config(str(chain.storage.dagster_home)) as opened:
        yield opened


@pytest.fixture(scope="module")
def run(chain):
    return MlflowClient(tracking_uri(chain.storage.root)).get_run(chain.facts["mlflow_run_id"])


@pytest.fixture(scope="module")
def plan(chain) -> RunPlan:
    return load_record(chain.storage.record("tiny", "run_plan"), RunPlan)


def test_the_answer_is_complete(chain, plan):
    facts = chain.facts
    assert facts["rows"] == {"accepted": 32, "rejected": 0, "exact_duplicates": 0}
    assert (facts["plan"], facts["snapshot"]) == (plan.fingerprint, plan.snapshot)
    assert facts["total_steps"] == plan.total_steps == sum(e["num_steps"] for e in facts["epochs"])
    assert [e["epoch"] for e in facts["epochs"]] == [0, 1]
    assert all(0.5 < e["padding_efficiency"] <= 1 for e in facts["epochs"])
    assert facts["loss"]["last"] < facts["loss"]["first"]
    assert 0 < facts["tokens_per_second"]["useful"] <= facts["tokens_per_second"]["padded"]
    assert facts["acceptance"]["untrained"] >= 1
    assert facts["acceptance"]["trained"] >= 1
    assert facts["acceptance"]["lossless"] is True
    assert Path(facts["target_dir"]) == chain.recipe.target.path
    assert folder_faults(Path(facts["export_dir"])) == []
    assert facts["seconds"] > 0
    assert facts["reused"] == []


def test_every_asset_is_materialised_and_every_check_passed(chain, instance):
    run_id = chain.facts["dagster_run_id"]
    assert instance.get_run_by_id(run_id).status is dg.DagsterRunStatus.SUCCESS
    for asset in ASSETS:
        assert instance.get_latest_materialization_event(dg.AssetKey(asset)), asset
    assert instance.get_materialized_partitions(dg.AssetKey("epoch_manifest")) == {"000", "001"}
    evaluations = [
        entry.dagster_event.asset_check_evaluation_data
        for entry in instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
    ]
    assert {evaluation.check_name: evaluation.passed for evaluation in evaluations} == dict.fromkeys(CHECKS, True)


def test_metadata_tells_the_numbers_of_a_stage(chain, instance, plan):
    def metadata(asset):
        event = instance.get_latest_materialization_event(dg.AssetKey(asset))
        return {key: value.value for key, value in event.asset_materialization.metadata.items()}

    assert metadata("conversations")["accepted_rows"] == 32
    assert metadata("run_plan")["total_steps"] == plan.total_steps
    assert metadata("epoch_manifest")["steps"] == plan.epochs[1].num_steps
    assert metadata("trained_drafter")["steps"] == plan.total_steps
    assert metadata("trained_drafter")["ranks"] == 2
    assert metadata("acceptance_report")["prompts"] == 2
    assert metadata("acceptance_report")["on_the_mlflow_page"] is True


def test_rank_zero_writes_into_the_steps_log(chain, instance):
    messages = [entry.user_message for entry in instance.all_logs(chain.facts["dagster_run_id"])]
    assert [m for m in messages if m.startswith("epoch 1: ") and "mean loss" in m]


def test_the_mlflow_run_is_finished_and_names_what_it_was_made_from(chain, run, plan):
    assert run.info.status == "FINISHED"
    params = run.data.params
    assert params["run"] == chain.facts["run"]
    assert (params["plan"], params["snapshot"], params["spec"]) == (
        plan.fingerprint,
        plan.snapshot,
        plan.spec.fingerprint,
    )
    assert params["target"]
    assert params["boundaries"] == ",".join(str(b) for b in plan.spec.boundaries)
    expected = {
        "strategy": "window",
        "token_budget": "448",
        "slots_per_step": "8",
        "num_epochs": "2",
        "total_steps": str(plan.total_steps),
        "block_size": "4",
        "num_layers": "1",
        "tap_layer_ids": "0,2",
        "learning_rate": "0.005",
        "anchors_per_sample": "8",
        "num_ranks": "2",
    }
    assert expected.items() <= params.items()


@pytest.mark.parametrize(
    "key",
    [
        "train/loss",
        "train/expected_acceptance",
        "train/gradient_norm",
        "train/learning_rate",
        "throughput/useful_tokens_per_second",
        "throughput/padded_tokens_per_second_smoothed",
        "time/data_wait_share",
        "ranks/imbalance",
        "progress/epoch",
        "progress/run",
        "spike/count",
    ],
)
def test_every_step_has_one_point_of_every_metric(chain, run, plan, key):
    uri = tracking_uri(chain.storage.root)
    values = values_by_step(uri, run.info.run_id, key)
    assert list(values) == list(range(1, plan.total_steps + 1))
    assert all(math.isfinite(value) for value in values.values())
    assert len(MlflowClient(uri).get_metric_history(run.info.run_id, key)) == plan.total_steps


def test_progress_ends_at_exactly_one_and_epochs_tell_their_steps(chain, run, plan):
    def values(key):
        return values_by_step(tracking_uri(chain.storage.root), run.info.run_id, key)

    ends = [plan.epochs[0].num_steps, plan.total_steps]
    assert [values("progress/epoch")[end] for end in ends] == [1.0, 1.0]
    assert values("progress/run")[plan.total_steps] == 1.0
    assert max(*values("progress/run").values(), *values("progress/epoch").values()) == 1.0
    assert values("epoch/num_steps") == dict(zip(ends, [e.num_steps for e in plan.epochs], strict=True))
    assert values("epoch/padding_efficiency") == pytest.approx(
        dict(zip(ends, [e.padding_efficiency for e in plan.epochs], strict=True))
    )


def test_the_runs_folder_holds_record_events_and_a_whole_checkpoint(chain, plan):
    run_dir = Path(chain.facts["run_dir"])
    record = load_record(run_dir / "run.json", RunRecord)
    assert (record.status, record.total_steps) == ("finished", plan.total_steps)
    assert record.mlflow_run_id == chain.facts["mlflow_run_id"]
    losses = last_attempt_losses(run_dir / "events.jsonl")
    assert [step for step, _ in losses] == list(range(1, plan.total_steps + 1))
    assert float.fromhex(losses[-1][1]) == chain.facts["loss"]["last"]
    assert newest_whole_checkpoint(run_dir / "checkpoints").name == f"step_{plan.total_steps:07d}"
    assert not list(run_dir.glob("error-rank-*.txt"))


def test_the_same_call_again_reuses_everything_and_trains_nothing(chain, tmp_path, monkeypatch):
    monkeypatch.setenv("DAGSTER_HOME", "")  # The run sets it; put back at the end.
    again = chain.copy(tmp_path / "storage")
    run_dir = again.storage.runs / chain.facts["run"]
    before = (run_dir / "events.jsonl").read_bytes()
    workbench = Workbench(recipe=again.recipe, storage=again.storage)
    facts = run_facts(run_whole_chain(workbench, fresh=False, plan_only=False), plan_only=False)
    made_of = {"conversations", "target_responses", "token_sequences", "epoch_manifest", "run_plan"}
    assert set(facts["reused"]) == made_of | {"trained_drafter", "exported_drafter", "acceptance_report", "champion"}
    assert (run_dir / "events.jsonl").read_bytes() == before
    assert [path.name for path in again.storage.runs.iterdir()] == [chain.facts["run"]]
    assert len(load_record(run_dir / "run.json", RunRecord).attempts) == 1
    same = ("rows", "snapshot", "plan", "total_steps", "epochs", "loss", "acceptance", "mlflow_run_id")
    assert {key: facts[key] for key in same} == {key: chain.facts[key] for key in same}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_eight_ranks_make_the_same_run(chain, tmp_path):
    """Through the same asset, on the same plan: the order of sums differs, nothing else."""
    eight = chain.copy(tmp_path / "storage")
    facts = eight.answer("run", "--fresh", "--set", "training.num_ranks=8", timeout=500)
    assert facts["plan"] == chain.facts["plan"]
    run_dir = Path(facts["run_dir"])
    assert run_dir.name == f"{chain.facts['run']}-2"
    assert [attempt.num_ranks for attempt in load_record(run_dir / "run.json", RunRecord).attempts] == [8]
    two = [float.fromhex(loss) for _, loss in last_attempt_losses(Path(chain.facts["run_dir"]) / "events.jsonl")]
    losses = [float.fromhex(loss) for _, loss in last_attempt_losses(run_dir / "events.jsonl")]
    assert losses == pytest.approx(two, rel=1e-3)
    assert tokens_of_each_step(run_dir) == tokens_of_each_step(Path(chain.facts["run_dir"]))


def tokens_of_each_step(run_dir: Path) -> list[int]:
    return [event["real_tokens"] for event in read_events(run_dir / "events.jsonl") if event["kind"] == "step"]
