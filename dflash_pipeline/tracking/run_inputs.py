"""What a run was trained on, in the form that MLflow's own pages know: a dataset input of the run."""

from __future__ import annotations

import json
from collections.abc import Mapping

from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag

CONTEXT = "mlflow.data.context"
SOURCE_TYPE = "dflash_snapshot"


def snapshot_input(recipe: str, params: Mapping[str, str]) -> DatasetInput | None:
    """The snapshot that a run's parameters name, as input for training; None where they name none.

    Two runs on the same samples have the same dataset: its digest is the snapshot's own.
    """
    snapshot = params.get("snapshot")
    if not snapshot:
        return None
    dataset = Dataset(
        name=f"{recipe}/snapshot",
        digest=snapshot,
        source_type=SOURCE_TYPE,
        source=json.dumps({"snapshot": snapshot, "folder": f"snapshots/{snapshot}"}),
        profile=json.dumps({name: params[name] for name in ("plan", "num_epochs", "total_steps") if name in params}),
    )
    return DatasetInput(dataset=dataset, tags=[InputTag(key=CONTEXT, value="training")])


def note_snapshot(client: MlflowClient, run_id: str, *, recipe: str, params: Mapping[str, str]) -> None:
    """Name the snapshot as the run's input. Again, it changes nothing."""
    found = snapshot_input(recipe, params)
    if found is not None:
        client.log_inputs(run_id, datasets=[found])
