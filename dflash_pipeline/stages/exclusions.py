"""`dflash exclude`: conversations that no later snapshot has, and back again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from dflash_pipeline.contracts.corpus import CorpusSnapshot
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.stages.run_files import RunFiles, read_run
from dflash_pipeline.stages.tokens import open_tokens
from dflash_pipeline.store.conversation_places import known_conversations, similar_conversations
from dflash_pipeline.store.exclusions import add_exclusions, read_exclusions, remove_exclusions
from dflash_pipeline.store.layout import Storage, open_storage
from dflash_pipeline.store.records import load_record
from dflash_pipeline.store.tokens import TokenStore
from dflash_pipeline.store.warehouse import Warehouse

MOST_UNKNOWN = 5
"""Unknown ids named in a refusal."""


def exclude(ids: Sequence[str], storage_dir: Path, *, why: str) -> dict[str, Any]:
    """Put conversations on the exclusion list; refused as a whole when one of them is not known."""
    storage = open_storage(storage_dir)
    if not storage.warehouse.exists():
        raise Refused("nothing was ingested here", where=str(storage.root), fix="give the storage folder of a recipe")
    database = Warehouse(storage.warehouse).database
    known = known_conversations(database, ids)
    _refuse_unknown(ids, known, lambda wanted: similar_conversations(database, wanted), where=str(storage.warehouse))
    return _listed(storage, dict.fromkeys(ids, why))


def exclude_of_run(run: str, sample_ids: Sequence[str], storage_dir: Path, *, why: str) -> dict[str, Any]:
    """The conversations of a run's samples; without any, of those that its events are due to."""
    storage = open_storage(storage_dir)
    files = read_run(storage, run)
    tokens = run_tokens(storage, files)
    if sample_ids:
        reasons = {
            tokens.conversation_id(_sample_id(given)): why or f"sample {given} of run {run}" for given in sample_ids
        }
    else:
        found = {sample: event for event in files.events for sample in event.shared_sample_ids}
        if not found:
            raise Refused(
                "no event of this run is due to data",
                where=str(files.folder),
                fix="see `dflash spikes RUN --full`, and name samples or conversations yourself",
            )
        reasons = {
            tokens.conversation_id(sample): why or f"loss {event.kind} at step {event.peak_step} of run {run}"
            for sample, event in sorted(found.items())
        }
    return _listed(storage, reasons)


def restore(ids: Sequence[str], storage_dir: Path) -> dict[str, Any]:
    """Take conversations off the list; refused as a whole when one of them is not on it."""
    storage = open_storage(storage_dir)
    listed = read_exclusions(storage.exclusions)
    _refuse_unknown(
        ids, listed, lambda wanted: tuple(get_close_matches(wanted, sorted(listed))), where=str(storage.exclusions)
    )
    restored = remove_exclusions(storage.exclusions, ids)
    return {"restored": list(restored), "num_listed": len(listed) - len(restored), "file": str(storage.exclusions)}


def run_tokens(storage: Storage, files: RunFiles) -> TokenStore:
    """The samples that a run trained on; refused when its plan or its snapshot is gone."""
    if files.plan is None:
        raise Refused("its plan is not known", where=str(files.folder), fix="name conversations instead of samples")
    snapshot = storage.snapshots / files.plan.snapshot / "snapshot.json"
    return open_tokens(storage, load_record(snapshot, CorpusSnapshot))


def _listed(storage: Storage, reasons: dict[str, str]) -> dict[str, Any]:
    added = add_exclusions(storage.exclusions, reasons)
    return {
        "excluded": list(added),
        "already": [name for name in reasons if name not in added],
        "num_listed": len(read_exclusions(storage.exclusions)),
        "file": str(storage.exclusions),
    }


def _sample_id(given: str) -> int:
    if not (given.isascii() and given.isdecimal()):
        raise Refused(
            f"{given!r} is no sample id", where="dflash exclude --from-run", fix="give numbers as `dflash spikes` shows"
        )
    return int(given)


def _refuse_unknown(
    ids: Sequence[str], known: frozenset[str], similar: Callable[[str], tuple[str, ...]], *, where: str
) -> None:
    unknown = [name for name in dict.fromkeys(ids) if name not in known]
    if not unknown:
        return
    named = ", ".join(repr(name) for name in unknown[:MOST_UNKNOWN])
    more = f" and {len(unknown) - MOST_UNKNOWN} more" if len(unknown) > MOST_UNKNOWN else ""
    near = list(dict.fromkeys(match for name in unknown[:MOST_UNKNOWN] for match in similar(name)))
    raise Refused(
        f"{named}{more}: not known; nothing was changed",
        where=where,
        fix=f"did you mean {', '.join(near)}?" if near else "give ids as `dflash show-sample` takes them",
    )
