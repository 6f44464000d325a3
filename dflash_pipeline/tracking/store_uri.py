"""Where MLflow keeps its things in the storage folder. Imports no MLflow: definitions and commands need this too."""

from __future__ import annotations

import os
import re
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


def server_uri(given: str | None, storage: Path) -> str:
    """What the recipe gives, or else `MLFLOW_TRACKING_URI`, or else this storage's own database.

    A user and a password come from MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or a token from
    MLFLOW_TRACKING_TOKEN, which MLflow's client reads itself. In the address they are refused: it is written down.
    """
    uri = given or os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        return tracking_uri(storage)
    if re.search(r"//[^/]*@", uri):
        raise Refused(
            "the tracking server's address has a user or a password in it, and would be written down in many places",
            where="tracking.uri" if given else "MLFLOW_TRACKING_URI",
            fix="set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, instead",
        )
    return uri


def is_server(uri: str) -> bool:
    """Whether an MLflow server answers there: with a page of its own, and a place of its own for artifacts."""
    return uri.startswith(("http://", "https://"))


def server_artifacts(uri: str, storage: Path) -> str | None:
    """The storage's folder for a database; None where a server keeps them itself."""
    return None if is_server(uri) or "://" not in uri else artifact_location(storage)


def artifact_location(storage: Path) -> str:
    """The folder for artifacts. Given explicitly: the default would be the working directory."""
    return (storage.resolve() / "mlflow" / "artifacts").as_uri()
