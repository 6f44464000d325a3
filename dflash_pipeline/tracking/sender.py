"""Sends one attempt's records to one MLflow run. Knows no threads and no repeats: each call does its act or raises.

Every act may be called again after it raised: a point sent twice with the same time is one point to MLflow.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from dflash_pipeline.contracts.events import Record, SpikeRecord, StepRecord
from dflash_pipeline.tracking.mlflow_runs import (
    ATTEMPTS,
    STATUS,
    RunTemplate,
    create_run,
    find_run,
    is_refusal,
    values_by_step,
)
from dflash_pipeline.tracking.points import (
    NONFINITE_COUNT,
    SPIKE_COUNT,
    Counts,
    points_of,
    spike_sentence,
)
from dflash_pipeline.training.tracker import EndStatus

METRICS_A_CALL, PARAMS_A_CALL = 1000, 100
POINTS_A_RECORD = 20
"""At most; a step makes 13."""
RECORDS_A_CALL = METRICS_A_CALL // POINTS_A_RECORD

logger = logging.getLogger(__name__)
Thing = TypeVar("Thing")


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedRecord:
    """A record and when it came, which is what tells a point of a later attempt from that of an earlier one."""

    record: Record
    unix_milliseconds: int


class RunSender:
    """`open` first, then parameters and records, then `close`."""

    def __init__(self, template: RunTemplate, run_id: str | None) -> None:
        self._template = template
        self._given_run_id = run_id
        self._counts: Counts | None = None
        self._client: MlflowClient
        self.run_id: str
        """Known once `open` has returned."""
        self.attempt = 1
        self.refusals = 0
        """Calls that the server understood and refused: repeating them would be of no use."""

    def open(self) -> None:
        """Takes the given run up again, or makes a new one if none was given or it is gone."""
        uri, given = self._template.tracking_uri, self._given_run_id
        found = find_run(uri, given) if given is not None else None
        if found is not None:
            self.run_id = found.info.run_id
            self.attempt = int(found.data.tags.get(ATTEMPTS, "1")) + 1
            MlflowClient(uri).update_run(self.run_id, status="RUNNING")
        else:
            if given is not None:
                logger.warning("MLflow has no run %s any more: going on in a new one", given)
            self.run_id = create_run(self._template)
            self._counts = Counts()
        self._client = MlflowClient(uri)

    def send_params(self, params: Mapping[str, str]) -> None:
        """Parameters of a run never change: what a later attempt sets otherwise becomes a tag `attempt.N.<name>`."""
        known = self._client.get_run(self.run_id).data.params
        for new in _chunks([Param(name, value) for name, value in params.items() if name not in known]):
            self._log(params=new)
        if self.attempt > 1:
            changed = {name: value for name, value in params.items() if known.get(name, value) != value}
            tags = self._template.tags | {f"attempt.{self.attempt}.{name}": value for name, value in changed.items()}
            for some in _chunks([RunTag(key, value) for key, value in tags.items()]):
                self._log(tags=some)
            # Last, so that a repeat after a fault still counts this attempt as the same one.
            self._log(tags=[RunTag(ATTEMPTS, str(self.attempt))])

    def send(self, items: Sequence[TimedRecord]) -> None:
        """At most `RECORDS_A_CALL` records, in order, in one call."""
        counts = self._counts
        metrics: list[Metric] = []
        tags: dict[str, str] = {}
        for item in items:
            if isinstance(item.record, StepRecord):
                if counts is None:
                    counts = self._counts_before(item.record.global_step)
                    tags[f"attempt.{self.attempt}.first_step"] = str(item.record.global_step)
                counts = counts.after(item.record)
            elif isinstance(item.record, SpikeRecord):
                tags["last_spike"] = spike_sentence(item.record)
            metrics += [
                Metric(p.key, p.value, item.unix_milliseconds, p.step)
                for p in points_of(item.record, counts or Counts())
            ]
        self._log(metrics=metrics, tags=[RunTag(key, value) for key, value in tags.items()])
        self._counts = counts

    def close(self, status: EndStatus) -> None:
        self._client.set_terminated(self.run_id, STATUS[status])

    def _log(
        self, *, metrics: Sequence[Metric] = (), params: Sequence[Param] = (), tags: Sequence[RunTag] = ()
    ) -> None:
        try:
            self._client.log_batch(self.run_id, metrics=metrics, params=params, tags=tags, synchronous=True)
        except MlflowException as fault:
            if not is_refusal(fault):
                raise
            self.refusals += 1

    def _counts_before(self, step: int) -> Counts:
        """What a run that is taken up again had counted where this attempt starts."""

        def count(key: str) -> int:
            values = values_by_step(self._template.tracking_uri, self.run_id, key)
            return int(next((values[done] for done in reversed(values) if done < step), 0.0))

        return Counts(spikes=count(SPIKE_COUNT), nonfinite=count(NONFINITE_COUNT))


def _chunks(things: Sequence[Thing]) -> Iterator[Sequence[Thing]]:
    return (things[start : start + PARAMS_A_CALL] for start in range(0, len(things), PARAMS_A_CALL))
