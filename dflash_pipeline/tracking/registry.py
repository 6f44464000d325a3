"""MLflow's model registry, brought up to what was decided: a version for each contender, and who holds which alias.

The registry holds paths and facts, never weights. Every act may be done again: the same weights are one version.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from dflash_pipeline.contracts.errors import Failed
from dflash_pipeline.faults import fault_point
from dflash_pipeline.tracking.mlflow_runs import SERVER_FAULTS, without_password
from dflash_pipeline.tracking.store_uri import is_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlflow.entities.model_registry import ModelVersion

Alias = Literal["previous", "champion", "challenger"]
# In this order: while a champion changes, `champion` always names one, the old or the new.
ALIASES: tuple[Alias, ...] = ("previous", "champion", "challenger")
WEIGHTS = "weights"
"""Tag of a version: SHA-256 of its model.safetensors, by which it is found again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VersionFacts:
    """What the registry is told of one drafter."""

    weights: str
    source: str
    """URI of the export's folder; nothing is copied from it."""
    mlflow_run_id: str | None
    tags: Mapping[str, str]


def ensure_version(tracking_uri: str, name: str, facts: VersionFacts) -> int:
    """The version of these weights: a new one if there is none yet. Its tags are brought up to date."""
    with _answering(tracking_uri):
        client = MlflowClient(tracking_uri)
        _ensure_model(client, name)
        found = _version_of(client, name, facts.weights)
        tags = {WEIGHTS: facts.weights, **facts.tags}
        if found is None:
            source = source_for(tracking_uri, facts.source)
            made = client.create_model_version(name, source, run_id=facts.mlflow_run_id, tags=tags)
            return int(made.version)
        for key, value in tags.items():
            if found.tags.get(key) != value:
                client.set_model_version_tag(name, found.version, key, value)
        return int(found.version)


def source_for(tracking_uri: str, source: str) -> str:
    """`source`, a folder's file:// address; for a server the same path, in words that it takes.

    A server refuses file:// outside the run's artifacts, which would be its own disk, and
    every scheme that names a host. One that it does not know is a note to it, and the folder can still be read off.
    """
    return f"dflash-export:{source.removeprefix('file://')}" if is_server(tracking_uri) else source


def set_aliases(tracking_uri: str, name: str, holders: Mapping[Alias, int]) -> None:
    """Each alias to its version; one without a version is taken away.

    An alias moves in one step: a reader finds the old version or the new.
    """
    with _answering(tracking_uri):
        client = MlflowClient(tracking_uri)
        now = {alias: int(version) for alias, version in client.get_registered_model(name).aliases.items()}
        for alias in ALIASES:
            version = holders.get(alias)
            if version is not None and now.get(alias) != version:
                fault_point("promotion.before-alias")
                client.set_registered_model_alias(name, alias, str(version))
                fault_point("promotion.after-alias")
        for alias in ALIASES:
            if alias not in holders and alias in now:
                client.delete_registered_model_alias(name, alias)


def alias_holders(tracking_uri: str, name: str) -> dict[str, int]:
    """Version by alias; none when the model is not registered."""
    with _answering(tracking_uri):
        try:
            model = MlflowClient(tracking_uri).get_registered_model(name)
        except MlflowException as fault:
            if fault.error_code == "RESOURCE_DOES_NOT_EXIST":
                return {}
            raise
        return {alias: int(version) for alias, version in model.aliases.items()}


def _ensure_model(client: MlflowClient, name: str) -> None:
    try:
        client.create_registered_model(
            name, description="DFlash drafters of one recipe; `champion` is the one to serve."
        )
    except MlflowException as fault:
        if fault.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def _version_of(client: MlflowClient, name: str, weights: str) -> ModelVersion | None:
    versions = client.search_model_versions(f"name='{name}'")
    held = [version for version in versions if version.tags.get(WEIGHTS) == weights]
    return max(held, key=lambda version: int(version.version), default=None)


@contextmanager
def _answering(tracking_uri: str) -> Iterator[None]:
    try:
        yield
    except SERVER_FAULTS as fault:
        raise Failed(
            f"MLflow's model registry did not take it: {without_password(fault)}",
            where=without_password(tracking_uri),
            fix="see that it can be written, and run again: training, export and report are not lost",
        ) from fault
