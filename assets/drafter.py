"""Group `training`: from a sealed plan to a trained drafter."""

from pathlib import Path

import dagster as dg
from pydantic import Field

from dflash_pipeline.assets.links import mlflow_link
from dflash_pipeline.assets.metadata import count, numbers
from dflash_pipeline.assets.owners import TRAINING
from dflash_pipeline.assets.plots import loss_with_spikes
from dflash_pipeline.assets.pools import NODE
from dflash_pipeline.assets.resources import Workbench
from dflash_pipeline.contracts.corpus import CorpusSnapshot
from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.contracts.results import TrainedDrafter
from dflash_pipeline.contracts.run import TimeSpent


class LaunchChoices(dg.Config):
    """How the run is started this time; its settings, ranks among them, are chosen at resources.workbench."""

    fresh: bool = Field(default=False, description="Start the same run over instead of resuming or reusing it.")


@dg.asset(group_name="training", kinds={"pytorch", "mlflow"}, owners=TRAINING, code_version="1", pool=NODE)
def trained_drafter(
    context: dg.AssetExecutionContext,
    workbench: dg.ResourceParam[Workbench],
    config: LaunchChoices,
    token_sequences: CorpusSnapshot,
    run_plan: RunPlan,
) -> dg.MaterializeResult[TrainedDrafter]:
    """A distributed run over the whole plan, started with torchrun; its curves are in MLflow.

    The same plan, target and settings are the same run: it is resumed when unfinished and reused when finished.
    """
    from dflash_pipeline.stages.data_versions import drafter_version
    from dflash_pipeline.stages.training import finished_drafter

    recipe, storage = workbench.recipe, workbench.storage
    found = finished_drafter(recipe, storage, token_sequences, run_plan, fresh=config.fresh)
    trained = found or _train(context, workbench, config, token_sequences, run_plan)
    reused = found is not None
    context.log.info(
        f"training: loss {trained.first_loss:.3f} to {trained.last_loss:.3f} in "
        f"{of_total(trained.steps_done, trained.total_steps)} steps, "
        f"{trained.useful_tokens_per_second:,.0f} tokens/s{' (finished before, reused)' if reused else ''}"
    )
    return dg.MaterializeResult(
        value=trained,
        data_version=dg.DataVersion(drafter_version(trained)),
        metadata={
            "run": trained.run,
            "steps": count(trained.steps_done),
            "planned_steps": count(trained.total_steps),
            "ranks": count(trained.num_ranks),
            **_numbers(trained),
            "loss_spikes": count(trained.num_spikes),
            "loss": loss_with_spikes(Path(trained.run_dir)),
            "mlflow_run_id": trained.mlflow_run_id or "",
            "mlflow": mlflow_link(workbench, trained.mlflow_run_id),
            "dagster_run": dg.MetadataValue.dagster_run(context.run_id),
            "stopped_early": trained.stopped_early or "",
            "warm_start": f"champion {trained.warm_start}" if trained.warm_start else "scratch",
            "folder": dg.MetadataValue.path(trained.run_dir),
            "event_log": dg.MetadataValue.path(str(Path(trained.run_dir) / "events.jsonl")),
            "checkpoint": dg.MetadataValue.path(trained.checkpoint),
            "reused": reused,
            **_counted(trained.spent),
        },
    )


def _numbers(trained: TrainedDrafter) -> dict[str, dg.MetadataValue]:
    """Losses and speeds, and of a run that kept it where its time went: the numbers of its charts, over all of it."""
    spent = trained.spent
    own = {
        "first_loss": trained.first_loss,
        "last_loss": trained.last_loss,
        "useful_tokens_per_second": trained.useful_tokens_per_second,
        "padded_tokens_per_second": trained.padded_tokens_per_second,
    }
    if spent is None:
        return numbers(own)
    kept = {
        "run_fraction": spent.run_fraction,
        "run_cost_fraction": spent.run_cost_fraction,
        "hours": spent.hours,
        "supervised_tokens_per_second": spent.supervised_tokens_per_second,
        "samples_per_second": spent.samples_per_second,
        "rank_imbalance_ratio": spent.imbalance,
        "peak_share": spent.peak_share,
    }
    return numbers(own | kept | {f"{part}_time_share": value for part, value in spent.shares.items()})


def _counted(spent: TimeSpent | None) -> dict[str, dg.MetadataValue]:
    return {} if spent is None else {"epochs_done": count(spent.epochs_done), "memory_bytes": count(spent.memory_bytes)}


def of_total(done: int, total: int) -> str:
    """Fewer than all only where the recipe limits them."""
    return f"{total:,}" if done == total else f"{done:,} of {total:,}"


def _train(
    context: dg.AssetExecutionContext,
    workbench: Workbench,
    config: LaunchChoices,
    snapshot: CorpusSnapshot,
    plan: RunPlan,
) -> TrainedDrafter:
    """Start the ranks with Pipes open: rank 0 writes its log lines into this step's."""
    from dflash_pipeline.stages.preflight import check_training
    from dflash_pipeline.stages.training import Launch, train_drafter
    from dflash_pipeline.training.run_page import DAGSTER_RUN

    num_ranks = workbench.recipe.training.num_ranks
    # Training may be all that this run does.
    check_training(workbench.recipe, workbench.storage, num_ranks=num_ranks)
    with dg.open_pipes_session(
        context=context,
        context_injector=dg.PipesTempFileContextInjector(),
        message_reader=dg.PipesTempFileMessageReader(),
    ) as session:
        launch = Launch(
            num_ranks=num_ranks,
            fresh=config.fresh,
            environment={**session.get_bootstrap_env_vars(), DAGSTER_RUN: context.run_id},
        )
        return train_drafter(workbench.recipe, workbench.storage, snapshot, plan, launch, tell=context.log.info)
