"""Stage `token_sequences`: a snapshot of tokens in memory-mapped Arrow, immutable, named by content.

What an earlier snapshot made of the same conversation under the same rule is taken from there: only what is new or
was edited is tokenised. Shards are written whole and in canonical order, so they are those of a clean build.
"""

from __future__ import annotations

import logging
import shutil
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from dflash_pipeline.contracts.conversation import Conversation, Ingestion
from dflash_pipeline.contracts.corpus import CorpusSnapshot
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.fingerprint import fingerprint
from dflash_pipeline.contracts.results import AnswerSet
from dflash_pipeline.contracts.sample import DroppedSample, Sample
from dflash_pipeline.faults import fault_point
from dflash_pipeline.ingest.chat import ChatRenderer
from dflash_pipeline.ingest.content import content_digest
from dflash_pipeline.ingest.processes import default_processes, in_chunks, tokenise_chunks
from dflash_pipeline.ingest.tokenise import Outcome, TokenRule, tokeniser
from dflash_pipeline.model.target_files import TOKENIZER_FILES
from dflash_pipeline.recipe import Data, Recipe
from dflash_pipeline.stages.made import Made
from dflash_pipeline.stages.progress import Tell, followed
from dflash_pipeline.stages.responses import SOURCE_ANSWERS, conversations_with_answers
from dflash_pipeline.store.exclusions import read_exclusions
from dflash_pipeline.store.files import folder_faults, new_folder, set_aside
from dflash_pipeline.store.known_tokens import EarlierSnapshots, KnownTokens
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.records import load_record, save_record
from dflash_pipeline.store.token_rows import RowsWriter, TokenRow, write_rows
from dflash_pipeline.store.tokens import TokenStore, write_shards
from dflash_pipeline.store.warehouse import Warehouse

logger = logging.getLogger(__name__)

TOKENIZER_FOLDER = "tokenizer"
SNAPSHOT_VERSION = 2
"""Part of a snapshot's identity: raised when the same inputs would give other files."""
MOST_LOST = 0.5
"""A larger share of conversations whose turns could not be found is the template's fault, not theirs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Inputs:
    """What a snapshot is made of, and the names of that."""

    ingestion: Ingestion
    answers: AnswerSet
    renderer: ChatRenderer
    rule: TokenRule
    excluded: frozenset[str]

    @property
    def rule_fingerprint(self) -> str:
        """Of all that turns a conversation into tokens."""
        return fingerprint(
            version=SNAPSHOT_VERSION,
            tokenizer=self.renderer.tokenizer_fingerprint,
            template=self.renderer.template_fingerprint,
            rule=self.rule,
        )

    @property
    def identity(self) -> str:
        return fingerprint(
            ingestion=self.ingestion.fingerprint,
            answers=self.answers.fingerprint,
            rule=self.rule_fingerprint,
            excluded=self.excluded,
        )


def make_snapshot(
    recipe: Recipe, storage: Storage, ingestion: Ingestion, answers: AnswerSet, *, tell: Tell = logger.debug
) -> Made[CorpusSnapshot]:
    """The snapshot of these conversations and answers; reused when it is there and whole.

    `tell` gets a line about progress from time to time.
    """
    inputs = _Inputs(
        ingestion=ingestion,
        answers=answers,
        renderer=ChatRenderer(recipe.target.path, recipe.target.chat_template),
        rule=_rule(recipe.data),
        excluded=read_exclusions(storage.exclusions),
    )
    identity = inputs.identity
    folder = storage.snapshots / identity
    reused = folder.exists() and not _set_aside_if_damaged(storage, identity)
    if not reused:
        _write(recipe, storage, inputs, tell)
    snapshot = load_record(folder / "snapshot.json", CorpusSnapshot)
    _register(storage, snapshot)
    return Made(record=snapshot, reused=reused)


def open_tokens(storage: Storage, snapshot: CorpusSnapshot) -> TokenStore:
    return TokenStore(storage.snapshots / snapshot.fingerprint, snapshot.shards)


def _rule(data: Data) -> TokenRule:
    return TokenRule(
        max_length=data.max_length,
        overlong=data.overlong,
        supervise=data.supervise,
        thinking=data.supervise_thinking,
        generation_prefix=data.supervise_generation_prefix,
    )


def _set_aside_if_damaged(storage: Storage, identity: str) -> bool:
    folder = storage.snapshots / identity
    faults = folder_faults(folder)
    if faults:
        logger.warning(
            "snapshot %s is rebuilt: %s; the damaged one is kept as %s", identity, faults[0], set_aside(folder)
        )
    return bool(faults)


def _write(recipe: Recipe, storage: Storage, inputs: _Inputs, tell: Tell) -> None:
    identity = inputs.identity
    counts: Counter[str] = Counter()
    with new_folder(storage.snapshots / identity, act="snapshot") as fresh:
        with write_rows(fresh) as rows, closing(_outcomes(recipe, storage, inputs)) as outcomes:
            followed_outcomes = followed(outcomes, total=inputs.ingestion.accepted, what="tokens", tell=tell)
            shards = write_shards(fresh, _counted(followed_outcomes, counts, rows))
        _refuse_useless(counts)
        _copy_tokenizer(recipe.target.path, fresh / TOKENIZER_FOLDER)
        save_record(
            fresh / "snapshot.json",
            CorpusSnapshot(
                fingerprint=identity,
                ingestion=inputs.ingestion.fingerprint,
                tokenizer=inputs.renderer.tokenizer_fingerprint,
                template=inputs.renderer.template_fingerprint,
                answers=inputs.answers.fingerprint,
                max_length=inputs.rule.max_length,
                num_train_samples=counts["train"],
                num_validation_samples=counts["validation"],
                num_tokens=counts["tokens"],
                num_supervised_tokens=counts["supervised"],
                dropped=_dropped(counts),
                shards=tuple(shard.name for shard in shards),
                rule=inputs.rule_fingerprint,
                num_cut_samples=counts["cut"],
            ),
        )
    tell(f"tokens: {counts['known']:,} of {counts['rows']:,} conversations were known from earlier snapshots")
    if reasons := _reasons(counts):
        logger.warning("left out at tokenisation: %s", reasons)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """One conversation on its way into the snapshot."""

    conversation: Conversation
    digest: bytes
    outcome: Outcome
    known: bool


def _outcomes(recipe: Recipe, storage: Storage, inputs: _Inputs) -> Generator[_Row]:
    """Every conversation in canonical order, with what became of it: known from earlier, or tokenised now."""
    earlier = EarlierSnapshots(storage.snapshots, inputs.rule_fingerprint)
    waiting: deque[list[tuple[Conversation, bytes, Outcome | None]]] = deque()

    def unknown() -> Iterator[list[Conversation]]:
        for chunk in in_chunks(_conversations(recipe, storage, inputs)):
            rows = [(c, digest := content_digest(c), _known(c, digest, earlier, inputs.excluded)) for c in chunk]
            waiting.append(rows)
            yield [c for c, _, outcome in rows if outcome is None]

    processes = recipe.data.processes or default_processes()
    for made in tokenise_chunks(unknown(), tokeniser(inputs.renderer, inputs.rule), processes=processes):
        fault_point("snapshot.after-chunk")
        rest = iter(made)
        for conversation, digest, outcome in waiting.popleft():
            yield _Row(
                conversation=conversation,
                digest=digest,
                outcome=outcome or next(rest),
                known=outcome is not None,
            )


def _conversations(recipe: Recipe, storage: Storage, inputs: _Inputs) -> Iterator[Conversation]:
    if inputs.answers.fingerprint == SOURCE_ANSWERS:
        for batch in Warehouse(storage.warehouse).stream_conversations(inputs.ingestion.fingerprint):
            yield from batch
    else:
        yield from conversations_with_answers(recipe, storage, inputs.ingestion, inputs.answers)


def _known(
    conversation: Conversation, digest: bytes, earlier: EarlierSnapshots, excluded: frozenset[str]
) -> Outcome | None:
    conversation_id = conversation.conversation_id
    if conversation_id in excluded:
        return DroppedSample(conversation_id=conversation_id, reason="excluded")
    known = earlier.find(digest)
    return None if known is None else _as_outcome(known, conversation)


def _as_outcome(known: KnownTokens, conversation: Conversation) -> Outcome:
    if known.reason is not None:
        return DroppedSample(conversation_id=conversation.conversation_id, reason=known.reason)
    return Sample(
        conversation_id=conversation.conversation_id,
        split=conversation.split,
        input_ids=known.input_ids,
        spans=known.spans,
        num_cut=known.num_cut,
    )


def _counted(rows: Iterable[_Row], counts: Counter[str], written: RowsWriter) -> Iterator[Sample]:
    """The samples among the rows, each counted and written down with its place."""
    for row in rows:
        counts["rows"] += 1
        counts["known"] += row.known
        outcome = row.outcome
        sample = outcome if isinstance(outcome, Sample) else None
        written.add(
            TokenRow(
                conversation_id=outcome.conversation_id,
                digest=row.digest,
                sample_id=counts["samples"] if sample else None,
                reason=outcome.reason if isinstance(outcome, DroppedSample) else None,
                num_tokens=sample.num_tokens if sample else 0,
                num_cut=sample.num_cut if sample else 0,
            )
        )
        if isinstance(outcome, DroppedSample):
            counts[f"dropped {outcome.reason}"] += 1
        if sample is None:
            continue
        counts["samples"] += 1
        counts[sample.split] += 1
        counts["cut"] += sample.num_cut > 0
        counts["tokens"] += sample.num_tokens
        counts["supervised"] += sample.num_supervised
        yield sample


def _refuse_useless(counts: Counter[str]) -> None:
    rows = counts["rows"]
    lost = counts["dropped spans_not_found"]
    if lost > MOST_LOST * rows:
        raise Refused(
            f"in {lost:,} of {rows:,} conversations the assistant's words cannot be found in what the chat template "
            "prints",
            where="token_sequences",
            fix="give a template that prints each answer once, as `target.chat_template` in the recipe",
        )
    if not counts["train"]:
        raise Refused(
            f"no training sample is left of {rows} conversations ({_reasons(counts) or 'none dropped'})",
            where="token_sequences",
            fix="look at `dflash rejected` when there are none, else at data.max_length and the chat template",
        )


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
    table = open_tokens(storage, snapshot).catalogue()
    sides = np.where(np.arange(table.num_rows) < snapshot.num_train_samples, "train", "validation")
    table = table.append_column("split", pa.array(sides, pa.string()))
    Warehouse(storage.warehouse).save_sequences(snapshot.fingerprint, table)
