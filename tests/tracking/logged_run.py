"""One attempt at a run as a rank tells it: the event log first, the MLflow tracker that reads it after."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dflash_pipeline.contracts.events import Record
from dflash_pipeline.tracking.mlflow_tracker import MlflowTracker
from dflash_pipeline.training.event_log import EventLog
from dflash_pipeline.training.tracker import EndStatus, Params


class LoggedRun:
    """`start`, `tell` and `end` for both, in their order."""

    def __init__(
        self,
        uri: str,
        run_dir: Path,
        *,
        experiment: str = "drafters",
        artifact_location: str | None,
        run_id: str | None = None,
        tags: Mapping[str, str] | None = None,
        files: tuple[Path, ...] = (),
        end_wait_seconds: float = 30.0,
    ) -> None:
        self.events = run_dir / "events.jsonl"
        self.log = EventLog(self.events)
        self.mlflow = MlflowTracker(
            uri,
            experiment,
            run_dir=run_dir,
            artifact_location=artifact_location,
            run_id=run_id,
            run_name="a run",
            tags=tags or {},
            files=files,
            end_wait_seconds=end_wait_seconds,
        )

    def start(self, params: Params) -> None:
        self.log.start(params)
        self.mlflow.start(params)

    def tell(self, record: Record) -> None:
        self.log.tell(record)
        self.mlflow.tell(record)

    def end(self, status: EndStatus) -> None:
        self.log.end(status)
        self.mlflow.end(status)

    def let_go(self) -> None:
        """As SIGKILL would end it: nothing more is written, and what was not sent stays so."""
        self.mlflow._given_up.set()
        self.mlflow._ending.set()
        self.wait_until_gone()
        self.log._file.close()

    def wait_until_gone(self) -> None:
        """As its process would be: no call of it is under way any more."""
        if self.mlflow._thread is not None:
            self.mlflow._thread.join()

    @property
    def run_id(self) -> str:
        run_id = self.mlflow.run_id(wait_seconds=20)
        assert run_id is not None
        return run_id
