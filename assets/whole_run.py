"""`dflash run`: the whole chain as one Dagster run in this process."""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import dataclass
from typing import TypeVar

import dagster as dg

from dflash_pipeline.assets.automation import OUT_OF_REACH
from dflash_pipeline.assets.catalogue import definitions_for
from dflash_pipeline.assets.inputs_tag import INPUTS_TAG
from dflash_pipeline.assets.instance import PROCESS_TAG, open_instance, settle_dead_runs, this_process
from dflash_pipeline.assets.node_wait import wait_for_the_node
from dflash_pipeline.assets.plan import UP_TO_PLAN, epoch_range_tags
from dflash_pipeline.assets.resources import Workbench
from dflash_pipeline.contracts.conversation import Ingestion
from dflash_pipeline.contracts.corpus import CorpusSnapshot
from dflash_pipeline.contracts.errors import DflashError, Failed
from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.contracts.promotion import PromotionDecision
from dflash_pipeline.contracts.results import BucketBoundaries, ExportedDrafter, TrainedDrafter
from dflash_pipeline.stages.inputs import inputs_digest
from dflash_pipeline.stages.terminal import show_bars
from dflash_pipeline.store.records import load_record

Record = TypeVar("Record")
logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeRun:
    """What one run of the chain made or reused."""

    workbench: Workbench
    dagster_run_id: str
    reused: tuple[str, ...]
    """Assets that found everything as it was."""
    seconds: float


def run_whole_chain(workbench: Workbench, *, fresh: bool, plan_only: bool) -> WholeRun:
    """Materialise every asset (with `plan_only`: everything before training) and wait for the end."""
    began = time.monotonic()
    show_bars()  # Answered while standard error still is the terminal.
    job = definitions_for(workbench).resolve_job_def("whole_chain")
    tags = epoch_range_tags(workbench.recipe.batching.epochs) | {PROCESS_TAG: this_process()} | OUT_OF_REACH
    tags[INPUTS_TAG] = inputs_digest(workbench.recipe, workbench.storage)
    config: dict[str, object] = {"loggers": {"terminal": {"config": {"log_level": "INFO"}}}}
    if not plan_only:
        config["ops"] = {"trained_drafter": {"config": {"fresh": fresh}}}
    with open_instance(workbench.storage) as instance:
        settle_dead_runs(instance)
        if not plan_only:
            wait_for_the_node(instance, tell=logger.warning)
        run_id = str(uuid.uuid4())
        try:
            result = job.execute_in_process(
                instance=instance,
                run_id=run_id,
                run_config=config,
                tags=tags,
                asset_selection=[dg.AssetKey(name) for name in UP_TO_PLAN] if plan_only else None,
            )
        except (dg.DagsterExecutionInterruptedError, KeyboardInterrupt):
            _report_canceled(instance, run_id)
            raise KeyboardInterrupt from None
        except dg.DagsterExecutionStepExecutionError as error:
            raise _failure(error) from error
        except dg.DagsterError as error:
            raise Failed(str(error), where="dagster run", fix="look at the run's page: `dflash ui`") from error
    return WholeRun(
        workbench=workbench,
        dagster_run_id=result.run_id,
        reused=_reused(result),
        seconds=time.monotonic() - began,
    )


def facts(run: WholeRun, *, plan_only: bool) -> dict[str, object]:
    """The run in the form that scripts read; everything comes from the records that the stages left."""
    found = _Records(run)
    ingestion = found.load("conversations", Ingestion)
    snapshot = found.load("token_sequences", CorpusSnapshot)
    boundaries = found.load("bucket_boundaries", BucketBoundaries)
    plan = found.load("run_plan", RunPlan)
    planned: dict[str, object] = {
        "rows": {
            "accepted": ingestion.accepted,
            "rejected": ingestion.rejected,
            "exact_duplicates": ingestion.exact_duplicates,
        },
        "tokens": {"all": snapshot.num_tokens, "supervised": snapshot.num_supervised_tokens},
        "snapshot": snapshot.fingerprint,
        "boundaries": [0, *boundaries.boundaries],
        "plan": plan.fingerprint,
        "total_steps": plan.total_steps,
        "epochs": [
            {"epoch": e.epoch, "num_steps": e.num_steps, "padding_efficiency": e.padding_efficiency}
            for e in plan.epochs
        ],
        "reused": list(run.reused),
        "dagster_run_id": run.dagster_run_id,
        "seconds": run.seconds,
        "target_dir": str(run.workbench.recipe.target.path),
    }
    return planned if plan_only else planned | _trained_facts(found)


def _trained_facts(found: _Records) -> dict[str, object]:
    from dflash_pipeline.stages.acceptance import AcceptanceComparison
    from dflash_pipeline.stages.promote import facts_of

    trained = found.load("trained_drafter", TrainedDrafter)
    exported = found.load("exported_drafter", ExportedDrafter)
    report = found.load("acceptance_report", AcceptanceComparison)
    return {
        "run": trained.run,
        "warm_start": trained.warm_start,
        "loss": {"first": trained.first_loss, "last": trained.last_loss},
        "loss_spikes": trained.num_spikes,
        "steps_done": trained.steps_done,
        "stopped_early": trained.stopped_early,
        "tokens_per_second": {
            "useful": trained.useful_tokens_per_second,
            "padded": trained.padded_tokens_per_second,
        },
        "acceptance": {
            "untrained": report.untrained.mean,
            "before": report.before.mean,
            "trained": report.trained.mean,
            "interval": list(report.trained.interval),
            "num_prompts": report.trained.num_prompts,
            "lossless": report.trained.lossless and report.untrained.lossless,
        },
        "export_dir": exported.export_dir,
        "promotion": facts_of(found.load("champion", PromotionDecision), found.workbench.storage),
        "run_dir": trained.run_dir,
        "mlflow_run_id": trained.mlflow_run_id,
    }


class _Records:
    def __init__(self, run: WholeRun) -> None:
        self.workbench = run.workbench
        self.dagster_run_id = run.dagster_run_id

    def load(self, asset: str, kind: type[Record]) -> Record:
        return load_record(self.workbench.storage.run_record(self.dagster_run_id, asset), kind)


def _report_canceled(instance: dg.DagsterInstance, run_id: str) -> None:
    """Dagster takes an interrupt for a failure unless the request came through it; here it came from the terminal."""
    if run := instance.get_run_by_id(run_id):
        instance.report_run_canceled(run, "interrupted: the same command goes on where it stopped")


def _failure(error: BaseException) -> Exception:
    """The stage's own error, or the system's, out of the wrappers that Dagster put round it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, DflashError | OSError):
            return cause
        cause = cause.__cause__ or cause.__context__
    return Failed(str(error), where="dagster run", fix="run again with --debug, or look at the run's page: `dflash ui`")


def _reused(result: dg.ExecuteInProcessResult) -> tuple[str, ...]:
    made: dict[str, list[bool]] = {}
    for event in result.get_asset_materialization_events():
        materialization = event.step_materialization_data.materialization
        if (flag := materialization.metadata.get("reused")) is not None:
            made.setdefault(materialization.asset_key.to_user_string(), []).append(bool(flag.value))
    return tuple(name for name, flags in made.items() if all(flags))
