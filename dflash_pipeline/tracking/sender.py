"""Calls to one MLflow run. Knows no threads and no repeats: each call does its act or raises.

Every act may be called again after it raised: a point sent twice with the same time is one point to MLflow.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from dflash_pipeline.tracking.mlflow_runs import (
    ATTEMPTS,
    STATUS,
    RunTemplate,
    create_run,
    find_run,
    find_spooled_run,
    is_refusal,
)
from dflash_pipeline.tracking.run_inputs import note_snapshot
from dflash_pipeline.training.tracker import EndStatus

METRICS_A_CALL, PARAMS_A_CALL = 1000, 100

logger = logging.getLogger(__name__)
Thing = TypeVar("Thing", Param, RunTag)


class RunSender:
    """`open` first."""

    def __init__(self, template: RunTemplate) -> None:
        self._template = template
        self._client: MlflowClient
        self.run_id: str
        """Known once `open` has returned."""
        self.refusals = 0
        """Calls that the server understood and refused: repeating them would be of no use."""

    def open(self, run_id: str | None, *, spool: str) -> str:
        """The run given, unless it is gone; or else the one with this spool; or else a new one. Returns its id."""
        uri = self._template.tracking_uri
        found = find_run(uri, run_id) if run_id is not None else None
        if found is not None:
            self.run_id = str(found.info.run_id)
        else:
            if run_id is not None:
                logger.warning("MLflow has no run %s any more: going on in a new one", run_id)
            # Made by a call whose answer never came, perhaps.
            self.run_id = find_spooled_run(self._template, spool) or create_run(self._template, spool)
        self._client = MlflowClient(uri)
        return self.run_id

    def take_up(self) -> None:
        """An attempt is under way."""
        self._client.update_run(self.run_id, status="RUNNING")

    def send_params(self, params: Mapping[str, str], *, attempt: int) -> int:
        """Parameters of a run never change: what a later attempt sets otherwise becomes a tag `attempt.N.<name>`.

        Returns how many were new.
        """
        known = self._client.get_run(self.run_id).data.params
        new = [Param(name, value) for name, value in params.items() if name not in known]
        for params_a_call in _chunks(new):
            self._log(params=params_a_call)
        changed = {name: value for name, value in params.items() if known.get(name, value) != value}
        tags = self._template.tags | {f"attempt.{attempt}.{name}": value for name, value in changed.items()}
        for tags_a_call in _chunks([RunTag(key, value) for key, value in tags.items()]):
            self._log(tags=tags_a_call)
        self._log(tags=[RunTag(ATTEMPTS, str(attempt))])
        self._note_snapshot(params)
        return len(new)

    def _note_snapshot(self, params: Mapping[str, str]) -> None:
        try:
            note_snapshot(self._client, self.run_id, recipe=self._template.experiment, params=params)
        except MlflowException as fault:
            if not is_refusal(fault):
                raise
            self.refusals += 1

    def send(self, metrics: Sequence[Metric], tags: Mapping[str, str]) -> None:
        """At most `METRICS_A_CALL` metrics, in one call."""
        self._log(metrics=metrics, tags=[RunTag(key, value) for key, value in tags.items()])

    def send_file(self, path: Path) -> None:
        self._client.log_artifact(self.run_id, str(path))

    def close(self, status: EndStatus, *, at_ms: int) -> None:
        """Ends the run, as of when its attempt ended. A run that has ended so keeps the time it ended at."""
        if self._client.get_run(self.run_id).info.status != STATUS[status]:
            self._client.set_terminated(self.run_id, STATUS[status], at_ms)

    def _log(
        self, *, metrics: Sequence[Metric] = (), params: Sequence[Param] = (), tags: Sequence[RunTag] = ()
    ) -> None:
        try:
            self._client.log_batch(self.run_id, metrics=metrics, params=params, tags=tags, synchronous=True)
        except MlflowException as fault:
            if not is_refusal(fault):
                raise
            self.refusals += 1


def _chunks(things: Sequence[Thing]) -> Iterator[Sequence[Thing]]:
    return (things[start : start + PARAMS_A_CALL] for start in range(0, len(things), PARAMS_A_CALL))
