"""What a person does in the Dagster page, as the requests that the page sends."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

MODULE = "dflash_pipeline.assets.definitions"
DONE = ("SUCCESS", "FAILURE", "CANCELED")

_LAUNCH = """mutation($given: ExecutionParams!) { launchRun(executionParams: $given) { __typename
  ... on LaunchRunSuccess { run { runId } } ... on PythonError { message }
  ... on RunConfigValidationInvalid { errors { message } } } }"""
_BACKFILL = """mutation($given: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $given) { __typename
  ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }"""
_RUNS = """{ runsOrError(limit: 100) { ... on Runs { results { runId status jobName assetSelection { path }
  tags { key value } } } } }"""
_TERMINATE = """mutation($run: String!) { terminateRun(runId: $run) { __typename
  ... on TerminateRunFailure { message } ... on PythonError { message } } }"""
_BACKFILL_STATUS = """query($id: String!) { partitionBackfillOrError(backfillId: $id) { __typename
  ... on PartitionBackfill { status error { message } } ... on PythonError { message } } }"""
_REPOSITORY = "{ repositoriesOrError { ... on RepositoryConnection { nodes { name location { name } } } } }"
_START_SCHEDULE = """mutation($which: ScheduleSelector!) { startSchedule(scheduleSelector: $which) { __typename
  ... on PythonError { message } } }"""
_STOP_SCHEDULE = """mutation($id: String!) { stopRunningSchedule(id: $id) { __typename } }"""
_START_SENSOR = """mutation($which: SensorSelector!) { startSensor(sensorSelector: $which) { __typename
  ... on PythonError { message } } }"""
_STOP_SENSOR = """mutation($id: String!) { stopSensor(id: $id) { __typename } }"""
_STATE = """query($which: InstigationSelector!) { instigationStateOrError(instigationSelector: $which) {
  ... on InstigationState { id status ticks(limit: 20) { status skipReason runIds error { message } } } } }"""


class Page:
    """The Dagster page at `address`; whatever answers with an error fails the test with its message."""

    def __init__(self, address: str) -> None:
        self._root = "/".join(address.split("/")[:3])
        [node] = self.ask(_REPOSITORY)["repositoriesOrError"]["nodes"]
        self._repository = {"repositoryName": node["name"], "repositoryLocationName": node["location"]["name"]}

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(
            f"{self._root}/graphql", data=body, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            document: dict[str, Any] = json.load(answer)
        assert "errors" not in document, document["errors"]
        return document["data"]

    def launch(
        self,
        *,
        job: str = "whole_chain",
        choices: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        assets: Sequence[str] | None = None,
    ) -> str:
        """Run id. `assets` as the launchpad names them; `choices` as they stand in the form."""
        selector: dict[str, Any] = {**self._repository, "jobName": job}
        if assets is not None:
            selector |= {"assetSelection": [{"path": [name]} for name in assets], "assetCheckSelection": None}
        config = {} if choices is None else {"resources": {"workbench": {"config": dict(choices)}}}
        given = {
            "selector": selector,
            "runConfigData": json.dumps(config),
            "mode": "default",
            "executionMetadata": {"tags": [{"key": key, "value": value} for key, value in (tags or {}).items()]},
        }
        found = self.ask(_LAUNCH, given=given)["launchRun"]
        assert found["__typename"] == "LaunchRunSuccess", found
        return str(found["run"]["runId"])

    def backfill(self, assets: Sequence[str], partitions: Sequence[str]) -> str:
        given = {"assetSelection": [{"path": [name]} for name in assets], "partitionNames": list(partitions)}
        found = self.ask(_BACKFILL, given=given)["launchPartitionBackfill"]
        assert found["__typename"] == "LaunchBackfillSuccess", found
        return str(found["backfillId"])

    def job_backfill(self, partitions: Sequence[str]) -> dict[str, Any]:
        """Of the job whole_chain, in the way the page's Partitions tab of a job asks for it."""
        selector = {"partitionSetName": "whole_chain_partition_set", "repositorySelector": self._repository}
        found: dict[str, Any] = self.ask(_BACKFILL, given={"selector": selector, "partitionNames": list(partitions)})[
            "launchPartitionBackfill"
        ]
        return found

    def backfill_status(self, backfill: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ask(_BACKFILL_STATUS, id=backfill)["partitionBackfillOrError"]
        return found

    def runs(self) -> list[dict[str, Any]]:
        """The newest first; tags as a mapping."""
        found = self.ask(_RUNS)["runsOrError"]["results"]
        return [run | {"tags": {tag["key"]: tag["value"] for tag in run["tags"]}} for run in found]

    def runs_of(self, backfill: str) -> list[dict[str, Any]]:
        return [run for run in self.runs() if run["tags"].get("dagster/backfill") == backfill]

    def run(self, run_id: str) -> dict[str, Any]:
        [found] = [run for run in self.runs() if run["runId"] == run_id]
        return found

    def ended(self, run_id: str, *, seconds: float = 240) -> str:
        """The status of a run once it is over."""
        until(lambda: self.run(run_id)["status"] in DONE, seconds=seconds, what=f"run {run_id} ends")
        return str(self.run(run_id)["status"])

    def terminate(self, run_id: str) -> None:
        found = self.ask(_TERMINATE, run=run_id)["terminateRun"]
        assert found["__typename"] == "TerminateRunSuccess", found

    def start_schedule(self, name: str) -> None:
        self.ask(_START_SCHEDULE, which={**self._repository, "scheduleName": name})

    def start_sensor(self, name: str) -> None:
        self.ask(_START_SENSOR, which={**self._repository, "sensorName": name})

    def stop_schedule(self, name: str) -> None:
        self.ask(_STOP_SCHEDULE, id=self._state(name)["id"])

    def stop_sensor(self, name: str) -> None:
        self.ask(_STOP_SENSOR, id=self._state(name)["id"])

    def ticks(self, name: str) -> list[dict[str, Any]]:
        """The newest first."""
        return list(self._state(name)["ticks"])

    def _state(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ask(_STATE, which={**self._repository, "name": name})["instigationStateOrError"]
        return found


def until(true: Any, *, seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.3)
