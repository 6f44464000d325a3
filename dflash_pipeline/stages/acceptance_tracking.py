"""The acceptance report on its run's MLflow page: figures, picture and the whole report."""

from __future__ import annotations

from pydantic import TypeAdapter

from dflash_pipeline.contracts.run import RunRecord
from dflash_pipeline.recipe import Recipe
from dflash_pipeline.stages.acceptance import AcceptanceComparison
from dflash_pipeline.stages.acceptance_pictures import acceptance_png
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.records import load_record
from dflash_pipeline.tracking.store_uri import server_uri


def track_report(recipe: Recipe, storage: Storage, comparison: AcceptanceComparison) -> bool:
    """True when the page has it. Without an MLflow run, or with a server that is down, there is only a warning."""
    from dflash_pipeline.tracking.run_artifacts import log_report

    path = storage.runs / comparison.run / "run.json"
    run_id = load_record(path, RunRecord).mlflow_run_id if path.exists() else None
    if run_id is None:
        return False
    return log_report(
        server_uri(recipe.tracking.uri, storage.root),
        run_id,
        metrics=report_figures(comparison),
        files={
            "acceptance/acceptance.png": acceptance_png(comparison.untrained, comparison.trained),
            "acceptance/acceptance.json": TypeAdapter(AcceptanceComparison).dump_json(comparison, indent=1),
        },
    )


def report_figures(comparison: AcceptanceComparison) -> dict[str, float]:
    """By the names of their charts."""
    trained = comparison.trained
    figures = {
        "report/acceptance_trained": trained.mean,
        "report/acceptance_untrained": comparison.untrained.mean,
        "report/acceptance_low": trained.interval[0],
        "report/acceptance_high": trained.interval[1],
        "report/acceptance_pooled": trained.pooled,
        "report/cut_rounds": float(trained.cut.num_rounds),
    }
    optional = {
        "report/expected_in_training": None if comparison.estimate is None else comparison.estimate.mean,
        "report/expected_speedup": comparison.expected_speedup,
    }
    return figures | {name: value for name, value in optional.items() if value is not None}
