"""Everything that `dflash doctor` looks at, with Dagster's own records, and the mending of it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import dagster as dg
from sqlalchemy.exc import SQLAlchemyError

from dflash_pipeline.assets.doctor_runs import held_slots, queued_runs, stuck_runs
from dflash_pipeline.assets.instance import instance_as_it_is
from dflash_pipeline.contracts.errors import DflashError
from dflash_pipeline.contracts.findings import Finding
from dflash_pipeline.stages.doctor import ailments
from dflash_pipeline.stages.doctor_ailment import Ailment, only_told
from dflash_pipeline.store.layout import Storage


def examine(storage: Storage, *, repair: bool) -> list[Finding]:
    """Everything that is found; with `repair`, what can be mended is, in order, and says so."""
    # Dagster last: a run is stuck only when its ranks are gone.
    found = [_after(ailment, repair=repair) for ailment in ailments(storage)]
    # With a database of its own the settings are all that is needed, and the folder may not be there yet.
    if storage.dagster_home.exists() or os.environ.get("DFLASH_DAGSTER_YAML"):
        try:
            with instance_as_it_is(storage) as instance:
                found += [_after(ailment, repair=repair) for ailment in _dagsters(instance)]
        except (dg.DagsterError, SQLAlchemyError) as error:
            found.append(_unreadable(storage, error).finding)
    return found


def _dagsters(instance: dg.DagsterInstance) -> Iterator[Ailment]:
    if older := list(_other_versions(instance)):
        # What its tables lack would only be an error in each of the others.
        yield from older
        return
    yield from stuck_runs(instance)
    yield from held_slots(instance)
    yield from queued_runs(instance)


def _other_versions(instance: dg.DagsterInstance) -> Iterator[Ailment]:
    kept = {"runs": instance.run_storage, "events": instance.event_log_storage, "schedules": instance.schedule_storage}
    for name, storage in kept.items():
        found, wanted = (storage.alembic_version() if storage else None) or (None, None)
        if found != wanted:
            yield only_told(
                "Dagster store",
                f"its tables of {name} are of version {found}, not {wanted}",
                where=str(instance.root_directory),
                fix=f"copy it, then `DAGSTER_HOME={instance.root_directory} dagster instance migrate`; "
                "if a newer Dagster has written it, install that",
            )


def _unreadable(storage: Storage, error: Exception) -> Ailment:
    return only_told(
        "Dagster store",
        f"cannot be opened: {str(error.__cause__ or error).splitlines()[0]}",
        where=str(storage.dagster_home),
        fix="see that its database runs, and that the environment is that of the servers (docs/deployment.md); "
        "a damaged folder may be moved away: it holds no drafter",
    )


def _after(ailment: Ailment, *, repair: bool) -> Finding:
    if not repair or ailment.mend is None:
        return ailment.finding
    try:
        ailment.mend()
    except DflashError as error:
        return ailment.finding.resisted(error.what, error.fix)
    except OSError as error:
        return ailment.finding.resisted(str(error), "see to that, then the same command again")
    return ailment.finding.repaired()
