"""Where MLflow keeps its things in the storage folder. Imports no MLflow: definitions and commands need this too."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

from dflash_pipeline.contracts.errors import Refused

CLIENT_ENVIRONMENT = MappingProxyType(
    {
        # The tracker repeats by itself, and stops when asked; the client's own seven repeats take minutes.
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_LOGGING_LEVEL": "WARNING",
    }
)
"""Environment for a process that tracks: give it to the ranks."""


def tracking_uri(storage: Path) -> str:
    """The SQLite database of this storage folder."""
    path = storage.resolve() / "mlflow" / "mlflow.db"
    if "?" in str(path):
        raise Refused(
            "a question mark cannot be part of a database address", where=str(storage), fix="rename the storage folder"
        )
    return f"sqlite:///{path}"


def artifact_location(storage: Path) -> str:
    """The folder for artifacts. Given explicitly: the default would be the working directory."""
    return (storage.resolve() / "mlflow" / "artifacts").as_uri()
