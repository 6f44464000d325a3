"""Conversations to a snapshot: tokens and supervised spans in memory-mapped Arrow, immutable, named by content."""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from tqdm import tqdm

from dflash_pipeline.contracts.conversation import Conversation, Ingestion
from dflash_pipeline.contracts.corpus import CorpusSnapshot
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.fingerprint import fingerprint
from dflash_pipeline.contracts.results import AnswerSet
from dflash_pipeline.contracts.sample import DroppedSample, Sample
from dflash_pipeline.ingest.chat import ChatRenderer
from dflash_pipeline.ingest.tokenise import tokenise
from dflash_pipeline.model.target_files import TOKENIZER_FILES
from dflash_pipeline.recipe import Recipe
from dflash_pipeline.stages.made import Made
from dflash_pipeline.stages.responses import conversations_with_answers
from dflash_pipeline.stages.terminal import show_bars
from dflash_pipeline.store.files import folder_faults, new_folder, set_aside
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.records import load_record, save_record
from dflash_pipeline.store.tokens import TokenStore, write_shards
from dflash_pipeline.store.warehouse import Warehouse

logger = logging.getLogger(__name__)

TOKENIZER_FOLDER = "tokenizer"
MASK_RULE = "assistant bodies and their end markers, version 1"
"""Part of a snapshot's identity: changed when other tokens become supervised."""


def make_snapshot(recipe: Recipe, storage: Storage, ingestion: Ingestion, answers: AnswerSet) -> Made[CorpusSnapshot]:
    """The snapshot of these conversations and answers; reused when it is there and whole."""
    renderer = ChatRenderer(recipe.target.path, recipe.target.chat_template)
    identity = fingerprint(
        ingestion=ingestion.fingerprint,
        answers=answers.fingerprint,
        tokenizer=renderer.tokenizer_fingerprint,
        template=renderer.template_fingerprint,
        max_length=recipe.data.max_length,
        overlong=recipe.data.overlong,
        supervise=recipe.data.supervise,
        mask_rule=MASK_RULE,
    )
    folder = storage.snapshots / identity
    reused = folder.exists() and not _set_aside_if_damaged(storage, identity)
    if not reused:
        conversations = conversations_with_answers(recipe, storage, ingestion, answers)
        _write(recipe, storage, identity, renderer, conversations, ingestion, answers)
    snapshot = load_record(folder / "snapshot.json", CorpusSnapshot)
    _register(storage, snapshot)
    return Made(record=snapshot, reused=reused)


def open_tokens(storage: Storage, snapshot: CorpusSnapshot) -> TokenStore:
    return TokenStore(storage.snapshots / snapshot.fingerprint, snapshot.shards)


def _set_aside_if_damaged(storage: Storage, identity: str) -> bool:
    folder = storage.snapshots / identity
    faults = folder_faults(folder)
    if faults:
        logger.warning(
            "snapshot %s is rebuilt: %s; the damaged one is kept as %s", identity, faults[0], set_aside(folder)
        )
    return bool(faults)


def _write(
    recipe: Recipe,
    storage: Storage,
    identity: str,
    renderer: ChatRenderer,
    conversations: Sequence[Conversation],
    ingestion: Ingestion,
    answers: AnswerSet,
) -> None:
    counts: Counter[str] = Counter()
    with new_folder(storage.snapshots / identity, act="snapshot") as fresh:
        results = tokenise(
            conversations,
            renderer,
            max_length=recipe.data.max_length,
            overlong=recipe.data.overlong,
            supervise=recipe.data.supervise,
        )
        bar = tqdm(results, total=len(conversations), desc="tokens", unit="row", disable=not show_bars())
        shards = write_shards(fresh, _count(bar, counts))
        if not counts["train"]:
            raise Refused(
                f"no training sample is left of {len(conversations)} conversations "
                f"({_reasons(counts) or 'none dropped'})",
                where="token_sequences",
                fix="look at `dflash rejected` when there are none, else at data.max_length and the chat template",
            )
        _copy_tokenizer(recipe.target.path, fresh / TOKENIZER_FOLDER)
        save_record(
            fresh / "snapshot.json",
            CorpusSnapshot(
                fingerprint=identity,
                ingestion=ingestion.fingerprint,
                tokenizer=renderer.tokenizer_fingerprint,
                template=renderer.template_fingerprint,
                answers=answers.fingerprint,
                max_length=recipe.data.max_length,
                num_train_samples=counts["train"],
                num_validation_samples=counts["validation"],
                num_tokens=counts["tokens"],
                num_supervised_tokens=counts["supervised"],
                dropped=_dropped(counts),
                shards=tuple(shard.name for shard in shards),
            ),
        )
    if reasons := _reasons(counts):
        logger.warning("left out at tokenisation: %s", reasons)


def _count(results: Iterable[Sample | DroppedSample], counts: Counter[str]) -> Iterator[Sample]:
    for result in results:
        if isinstance(result, DroppedSample):
            counts[f"dropped {result.reason}"] += 1
            continue
        counts[result.split] += 1
        counts["tokens"] += int(result.input_ids.size)
        counts["supervised"] += sum(end - start for start, end in result.spans)
        yield result


def _dropped(counts: Counter[str]) -> tuple[tuple[str, int], ...]:
    return tuple((key.removeprefix("dropped "), n) for key, n in counts.items() if key.startswith("dropped "))


def _reasons(counts: Counter[str]) -> str:
    return ", ".join(f"{n} {reason}" for reason, n in _dropped(counts))


def _copy_tokenizer(folder: Path, to: Path) -> None:
    """A snapshot can be read as text for as long as it exists, whatever becomes of the target's folder."""
    to.mkdir()
    for name in ("config.json", *TOKENIZER_FILES):
        if (folder / name).is_file():
            shutil.copyfile(folder / name, to / name)


def _register(storage: Storage, snapshot: CorpusSnapshot) -> None:
    """Make the snapshot's samples visible to SQL, in the warehouse's table `sequences`."""
    tokens = open_tokens(storage, snapshot)
    lengths = tokens.lengths()
    sample_ids = range(lengths.size)
    places = [tokens.place(i) for i in sample_ids]
    table = pa.table(
        {
            "sample_id": pa.array(sample_ids, pa.int64()),
            "conversation_id": pa.array([tokens.conversation_id(i) for i in sample_ids], pa.string()),
            "split": ["train" if i < snapshot.num_train_samples else "validation" for i in sample_ids],
            "shard": [shard for shard, _ in places],
            "row": pa.array([row for _, row in places], pa.int64()),
            "num_tokens": lengths,
            "num_supervised": tokens.num_supervised(),
        }
    )
    Warehouse(storage.warehouse).save_sequences(snapshot.fingerprint, table)
