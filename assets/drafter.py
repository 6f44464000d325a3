"""Group `training`: from a sealed plan to a trained drafter."""

import dagster as dg
from pydantic import Field

from dflash_pipeline.assets.metadata import count, number, share
from dflash_pipeline.assets.pools import NODE
from dflash_pipeline.assets.resources import Workbench
from dflash_pipeline.contracts.corpus import CorpusSnapshot
from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.contracts.results import TrainedDrafter
from dflash_pipeline.contracts.run import TimeSpent


class LaunchChoices(dg.Config):
    """How the ranks are started this time."""

    num_ranks: int | None = Field(
        default=None, ge=1, description="Processes; must divide slots_per_step. Empty: as the recipe says."
    )
    fresh: bool = Field(default=False, description="Start the same run over instead of resuming or reusing it.")


@dg.asset(group_name="training", kinds={"pytorch", "mlflow"}, pool=NODE)
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
        data_version=dg.DataVersion(trained.run),
        metadata={
            "run": trained.run,
            "steps": count(trained.steps_done),
            "planned_steps": count(trained.total_steps),
            "ranks": count(trained.num_ranks),
            "first_loss": number(trained.first_loss),
            "last_loss": number(trained.last_loss),
            "loss_spikes": count(trained.num_spikes),
            "useful_tokens_per_second": number(trained.useful_tokens_per_second),
            "padded_tokens_per_second": number(trained.padded_tokens_per_second),
            "mlflow_run_id": trained.mlflow_run_id or "",
            "stopped_early": trained.stopped_early or "",
            "folder": dg.MetadataValue.path(trained.run_dir),
            "reused": reused,
            **_time_spent(trained.spent),
        },
    )


def _time_spent(spent: TimeSpent | None) -> dict[str, dg.MetadataValue]:
    """How far the run came and where its time went: the numbers of its charts, over the whole run."""
    if spent is None:
        return {}
    known = {"rank_imbalance": spent.imbalance, "peak_share": spent.peak_share}
    return {
        "epochs_done": count(spent.epochs_done),
        "run_fraction": share(spent.run_fraction),
        "run_cost_fraction": share(spent.run_cost_fraction),
        "hours": number(spent.hours),
        "supervised_tokens_per_second": number(spent.supervised_tokens_per_second),
        "samples_per_second": number(spent.samples_per_second),
        "memory_bytes": count(spent.memory_bytes),
        **{name: number(value) for name, value in known.items() if value is not None},
        **{f"time_share_{part}": share(value) for part, value in spent.shares.items()},
    }


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

    num_ranks = config.num_ranks or workbench.recipe.training.num_ranks
    # Training may be all that this run does, and its number of ranks is known here only.
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
