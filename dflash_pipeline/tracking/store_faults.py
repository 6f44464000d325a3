"""Whether an MLflow store can be worked with. It is not changed: MLflow's own client upgrades some old ones unasked."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from mlflow import MlflowClient
from mlflow.store import db_migrations
from sqlalchemy.exc import SQLAlchemyError

from dflash_pipeline.tracking.mlflow_runs import answer_in_time

DATABASES = ("sqlite:", "postgresql", "mysql", "mssql")
"""Of an address that MLflow's client takes for a database."""


def store_fault(uri: str) -> str | None:
    """One sentence: a server that does not answer, a database that cannot be read or is of another version."""
    if not uri.startswith(DATABASES):
        answer = answer_in_time(lambda: MlflowClient(uri).search_experiments(max_results=1), "reach the server")
        return "the server does not answer" if answer is None else None
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).exists():
        return None
    try:
        found = _version(uri)
    except (SQLAlchemyError, ImportError) as error:
        return f"cannot be read: {str(error.__cause__ or error).splitlines()[0]}"
    wanted = newest_version()
    return None if found == wanted else f"its tables are of version {found or 'none'}, not {wanted}"


def newest_version() -> str | None:
    """Of the tables that the installed MLflow makes."""
    return ScriptDirectory(str(Path(db_migrations.__file__).parent)).get_current_head()


def _version(uri: str) -> str | None:
    engine = sqlalchemy.create_engine(uri)
    try:
        with engine.connect() as connection:
            return MigrationContext.configure(connection).get_current_revision()
    finally:
        engine.dispose()
