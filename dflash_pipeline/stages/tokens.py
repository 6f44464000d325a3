"""Stage `token_sequences`: a snapshot of tokens in memory-mapped Arrow, immutable, named by content.

What an earlier snapshot made of the same conversation under the same rule is taken from there: only what is new or
was edited is tokenised. Shards are written whole and in canonical order, so they are those of a clean build.
"""

from __future__ import annotations

import logging
import shutil
from collections import deque
from collections.abc import Generator, Iterator
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
from dflash_pipeline.faults import fault_point
from dflash_pipeline.ingest.chat import ChatRenderer
from dflash_pipeline.ingest.collector import only_new_collected
from dflash_pipeline.ingest.content import content_digest
from dflash_pipeline.ingest.processes import default_processes, in_chunks, tokenise_chunks
from dflash_pipeline.ingest.thinking import ThoughtFinder
from dflash_pipeline.ingest.tokenise import Outcome, TokenRule, tokeniser
from dflash_pipeline.model.target_files import TOKENIZER_FILES
from dflash_pipeline.recipe import Data, Recipe
from dflash_pipeline.stages.foreknown import Foreknown
from dflash_pipeline.stages.made import Made
from dflash_pipeline.stages.progress import Tell, followed
from dflash_pipeline.stages.responses import SOURCE_ANSWERS, conversations_with_answers
from dflash_pipeline.stages.source_weights import file_weights
from dflash_pipeline.stages.target_renderer import target_renderer
from dflash_pipeline.stages.token_counts import TokenCounts, TokenisedRow
from dflash_pipeline.store.exclusions import read_exclusions
from dflash_pipeline.store.files import folder_faults, new_folder, set_aside
from dflash_pipeline.store.known_tokens import EarlierSnapshots
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.records import load_record, save_record
from dflash_pipeline.store.token_rows import TokenRows, write_rows
from dflash_pipeline.store.tokens import TokenStore, write_shards
from dflash_pipeline.store.warehouse import Warehouse

logger = logging.getLogger(__name__)

TOKENIZER_FOLDER = "tokenizer"
SNAPSHOT_VERSION = 2
"""Part of a snapshot's identity: raised when the same inputs would give other files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Inputs:
    """What a snapshot is made of, and the names of that."""

    ingestion: Ingestion
    answers: AnswerSet
    renderer: ChatRenderer
    rule: TokenRule
    excluded: frozenset[str]
    weights: tuple[float, ...]
    """Of the ingestion's files, in their order."""

    @property
    def rule_fingerprint(self) -> str:
        return rule_fingerprint(self.renderer, self.rule)

    @property
    def identity(self) -> str:
        # Named only where they do something: snapshots keep the names that they had before there were weights.
        weights = {"weights": self.weights} if set(self.weights) - {1.0} else {}
        return fingerprint(
            ingestion=self.ingestion.fingerprint,
            answers=self.answers.fingerprint,
            rule=self.rule_fingerprint,
            excluded=self.excluded,
            **weights,
        )


def make_snapshot(
    recipe: Recipe, storage: Storage, ingestion: Ingestion, answers: AnswerSet, *, tell: Tell = logger.debug
) -> Made[CorpusSnapshot]:
    """The snapshot of these conversations and answers; reused when it is there and whole.

    `tell` gets a line about progress from time to time.
    """
    # What the warehouse holds now: found by content, it may name the files otherwise.
    ingestion = Warehouse(storage.warehouse).find_ingestion(ingestion.fingerprint) or ingestion
    inputs = _Inputs(
        ingestion=ingestion,
        answers=answers,
        renderer=target_renderer(recipe.target),
        rule=token_rule(recipe.data),
        excluded=read_exclusions(storage.exclusions),
        weights=file_weights(recipe.data, ingestion),
    )
    identity = inputs.identity
    folder = storage.snapshots / identity
    reused = folder.exists() and not _set_aside_if_damaged(storage, identity)
    if not reused:
        _write(recipe, storage, inputs, tell)
    snapshot = load_record(folder / "snapshot.json", CorpusSnapshot)
    # It stays where it is refused: under another setting the same samples are taken.
    _check_thinking(snapshot, recipe)
    _register(storage, snapshot)
    return Made(record=snapshot, reused=reused)


def num_conversations(storage: Storage, snapshot: CorpusSnapshot) -> int:
    """Distinct conversations among the samples: with the dropped ones, all that there were."""
    rows = TokenRows(storage.snapshots / snapshot.fingerprint).table()
    return int(rows.num_rows - rows["sample_id"].null_count)


def open_tokens(storage: Storage, snapshot: CorpusSnapshot) -> TokenStore:
    return TokenStore(storage.snapshots / snapshot.fingerprint, snapshot.shards)


def token_rule(data: Data) -> TokenRule:
    """What the recipe says of length and supervision."""
    return TokenRule(
        max_length=data.max_length,
        overlong=data.overlong,
        supervise=data.supervise,
        thinking=data.supervise_thinking,
        generation_prefix=data.supervise_generation_prefix,
    )


def rule_fingerprint(renderer: ChatRenderer, rule: TokenRule) -> str:
    """Of all that turns a conversation into tokens."""
    return fingerprint(
        version=SNAPSHOT_VERSION,
        tokenizer=renderer.tokenizer_fingerprint,
        template=renderer.template_fingerprint,
        rule=rule,
    )


def _check_thinking(snapshot: CorpusSnapshot, recipe: Recipe) -> None:
    wanted = {True: ["thinking"], False: ["non-thinking"], None: ["thinking", "non-thinking"]}
    if recipe.data.thinking == "mixed" or snapshot.thinking in ("unknown", *wanted[recipe.target.enable_thinking]):
        return
    thinking = snapshot.num_thinking_samples
    raise Refused(
        f"the answers of {thinking:,} samples hold thoughts, those of {snapshot.num_samples - thinking:,} none, and "
        f"target.thinking is {recipe.target.thinking}: more than one mode",
        where=f"snapshot {snapshot.fingerprint}",
        fix="keep sources and target.thinking to the mode that the drafter will serve, or set data.thinking to mixed",
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
    counts = TokenCounts()
    with new_folder(storage.snapshots / identity, act="snapshot") as fresh:
        with only_new_collected(), write_rows(fresh) as written, closing(_rows(recipe, storage, inputs)) as rows:
            followed_rows = followed(rows, total=inputs.ingestion.accepted, what="tokens", tell=tell)
            shards = write_shards(fresh, counts.samples(followed_rows, written))
        counts.refuse_useless()
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
                dropped=counts.dropped,
                shards=tuple(shard.name for shard in shards),
                rule=inputs.rule_fingerprint,
                num_cut_samples=counts["cut"],
                thinking=counts.thinking,
                num_thinking_samples=counts["thinking"],
            ),
        )
    tell(f"tokens: {counts['from earlier']:,} of {counts['rows']:,} conversations were known from earlier snapshots")
    if counts.reasons:
        logger.warning("left out at tokenisation: %s", counts.reasons)


def _rows(recipe: Recipe, storage: Storage, inputs: _Inputs) -> Generator[TokenisedRow]:
    """Every conversation in canonical order, with what became of it: known before, or tokenised now."""
    files = [source.file for source in inputs.ingestion.sources]
    foreknown = Foreknown(
        earlier=EarlierSnapshots(storage.snapshots, inputs.rule_fingerprint),
        excluded=inputs.excluded,
        weight_of=dict(zip(files, inputs.weights, strict=True)),
    )
    thoughts = ThoughtFinder(inputs.renderer)
    waiting: deque[list[tuple[Conversation, bytes, Outcome | None]]] = deque()

    def unknown() -> Iterator[list[Conversation]]:
        for chunk in in_chunks(_conversations(recipe, storage, inputs)):
            rows = [(c, digest := content_digest(c), foreknown.outcome(c, digest)) for c in chunk]
            waiting.append(rows)
            yield [c for c, _, outcome in rows if outcome is None]

    processes = recipe.data.processes or default_processes()
    for made in tokenise_chunks(unknown(), tokeniser(inputs.renderer, inputs.rule), processes=processes):
        fault_point("snapshot.after-chunk")
        rest = iter(made)
        for conversation, digest, outcome in waiting.popleft():
            yield TokenisedRow(
                digest=digest,
                outcome=outcome or next(rest),
                copies=foreknown.copies(conversation),
                known=outcome is not None,
                thinks=thoughts.thinks(conversation),
            )


def _conversations(recipe: Recipe, storage: Storage, inputs: _Inputs) -> Iterator[Conversation]:
    if inputs.answers.fingerprint == SOURCE_ANSWERS:
        for batch in Warehouse(storage.warehouse).stream_conversations(inputs.ingestion.fingerprint):
            yield from batch
    else:
        yield from conversations_with_answers(recipe, storage, inputs.ingestion, inputs.answers)


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
