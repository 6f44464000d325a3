"""`dflash ingest` and `show-sample`: the first stages without recipe and Dagster, and one sample looked up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dflash_pipeline.contracts.conversation import Ingestion
from dflash_pipeline.contracts.corpus import CorpusSnapshot
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.ingest.tokenizer import load_tokenizer
from dflash_pipeline.recipe import Data, Format, Mapped, Recipe, Responses, Source, Target
from dflash_pipeline.stages.conversations import make_conversations
from dflash_pipeline.stages.responses import make_responses
from dflash_pipeline.stages.tokens import TOKENIZER_FOLDER, make_snapshot, open_tokens
from dflash_pipeline.store.layout import Storage, open_storage
from dflash_pipeline.store.records import load_record
from dflash_pipeline.store.warehouse import Warehouse


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestRequest:
    """What the command line says."""

    sources: tuple[Path, ...]
    """Files, folders or patterns."""
    tokenizer: Path
    chat_template: Path | None
    mapping: Mapping[Mapped, str]
    format: Format | None
    supervise: Literal["all", "last"]
    max_length: int
    overlong: Literal["truncate", "drop"]
    max_row_bytes: int

    def as_recipe(self) -> Recipe:
        """The recipe that says the same: one way of working, whoever asks."""
        return Recipe(
            name="ingest",
            data=Data(
                sources=[Source(path=path, map=dict(self.mapping), format=self.format) for path in self.sources],
                max_row_bytes=self.max_row_bytes,
                validation_fraction=0.0,
                max_length=self.max_length,
                overlong=self.overlong,
                supervise=self.supervise,
                # Nothing is trained here: whoever trains on these rows says it in a recipe.
                thinking="mixed",
            ),
            target=Target(path=self.tokenizer, chat_template=self.chat_template),
            responses=Responses(enabled=False),
        )


def ingest_files(request: IngestRequest, storage_dir: Path, *, known: dict[str, Any]) -> dict[str, Any]:
    """Rows to a snapshot. `known` is filled as facts become known, so that a refusal can still tell them."""
    recipe, storage = request.as_recipe(), open_storage(storage_dir)
    ingestion = make_conversations(recipe, storage).record
    known.update(_row_facts(ingestion))
    if ingestion.accepted == 0:
        raise Refused(
            f"no row was accepted of {ingestion.rejected} rejected" + _unread(ingestion),
            where=", ".join(str(path) for path in request.sources),
            fix="see `dflash rejected` for each row's reason, and --map for rows that hold turns in fields",
        )
    answers = make_responses(recipe, storage, ingestion).record
    snapshot = make_snapshot(recipe, storage, ingestion, answers).record
    return {
        **_row_facts(ingestion),
        "num_tokens": snapshot.num_tokens,
        "num_supervised_tokens": snapshot.num_supervised_tokens,
        "num_samples": snapshot.num_samples,
        "dropped": dict(snapshot.dropped),
        "snapshot": snapshot.fingerprint,
    }


def sample_facts(conversation_id: str, storage_dir: Path) -> dict[str, Any]:
    """One conversation's sample in the newest snapshot that has it: its tokens, its text, and what carries the loss.

    Copies, which a weight above 1 makes, differ in their id alone: the first is shown, `sample_ids` names all.
    """
    storage = open_storage(storage_dir)
    snapshot, sample_ids = _newest_samples(storage, conversation_id)
    sample_id = sample_ids[0]
    tokens = open_tokens(storage, snapshot)
    tokenizer = load_tokenizer(storage.snapshots / snapshot.fingerprint / TOKENIZER_FOLDER)
    ids, supervised = tokens.input_ids(sample_id), tokens.supervised_mask(sample_id)
    return {
        "id": conversation_id,
        "snapshot": snapshot.fingerprint,
        "sample_id": sample_id,
        "sample_ids": sample_ids,
        "num_tokens": int(ids.size),
        "num_supervised_tokens": int(supervised.sum()),
        "supervised_text": tokenizer.decode(ids[supervised].tolist()),
        "text": tokenizer.decode(ids.tolist()),
    }


def _newest_samples(storage: Storage, conversation_id: str) -> tuple[CorpusSnapshot, list[int]]:
    paths: dict[Path, list[int]] = {}
    for snapshot, sample_id in Warehouse(storage.warehouse).find_samples(conversation_id):
        paths.setdefault(storage.snapshots / snapshot / "snapshot.json", []).append(sample_id)
    present = [path for path in paths if path.exists()]
    if not present:
        raise Refused(
            f"no snapshot has a sample of conversation {conversation_id!r}",
            where=str(storage.root),
            fix="see `dflash rejected`: the row may have been rejected, or its sample dropped at tokenisation",
        )
    newest = max(present, key=lambda path: path.stat().st_mtime_ns)
    return load_record(newest, CorpusSnapshot), paths[newest]


def _row_facts(ingestion: Ingestion) -> dict[str, Any]:
    return {
        "accepted": ingestion.accepted,
        "rejected": ingestion.rejected,
        "exact_duplicates": ingestion.exact_duplicates,
        "by_reason": dict(ingestion.by_reason),
        "files": [
            {
                "path": s.file,
                "accepted": s.accepted,
                "rejected": s.rejected,
                "exact_duplicates": s.exact_duplicates,
                "error": s.error,
            }
            for s in ingestion.sources
        ],
        "num_prompts": ingestion.num_prompts,
    }


def _unread(ingestion: Ingestion) -> str:
    errors = [source.error for source in ingestion.sources if source.error is not None]
    return "".join(f"; {error}" for error in errors[:3])
