"""The first rows of a source, read and tokenised as the stages will: enough to see a mask that is wrong everywhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from dflash_pipeline.contracts.conversation import Conversation, Reason
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.sample import DroppedSample, Sample
from dflash_pipeline.ingest.conversation import PromptOnly, Turns, read_turns
from dflash_pipeline.ingest.formats import detect_format, read_rows
from dflash_pipeline.ingest.limits import Limits
from dflash_pipeline.ingest.rows import BadRow, RowError
from dflash_pipeline.ingest.shapes import unfold
from dflash_pipeline.ingest.sources import SourceFile, expand, refuse_mapping, shown
from dflash_pipeline.ingest.tokenise import Tokeniser
from dflash_pipeline.ingest.unpack import FileUnreadable

FILES = 3
"""Looked into, of one source: the first, the last and the middle one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    """Where reading a file ends, whichever comes first."""

    rows: int
    seconds: float
    characters: int
    """A document is cut there; a longer conversation is not tokenised."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Coverage:
    """Samples of one form, their tokens, and how many of those carry a loss."""

    num_samples: int
    num_tokens: int
    num_supervised: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceSample:
    """What the first rows of some files of one source gave."""

    where: str
    weight: float
    num_files: int
    num_bytes: int
    """Of all its files, on disk."""
    num_files_read: int
    unreadable: tuple[FileUnreadable, ...]
    num_taken: int
    """Rows that are conversations, documents or tokens."""
    num_characters: int
    """Of those, as ingestion measures size."""
    num_prompts: int
    """Rows without an answer; among the rejected."""
    rejected: Mapping[str, int]
    dropped: Mapping[str, int]
    """Rows that were taken and give no sample, by reason."""
    chats: Coverage
    tokenised: Coverage
    documents: Coverage
    token_ids: frozenset[int]
    lengths: tuple[tuple[int, int], ...]
    """Tokens, and supervised tokens, of each sample."""
    whole: bool
    """Whether these are all rows of all its files."""

    @property
    def num_rows(self) -> int:
        return self.num_taken + sum(self.rejected.values())

    @property
    def all_forms(self) -> Coverage:
        forms = (self.chats, self.tokenised, self.documents)
        return Coverage(
            num_samples=sum(form.num_samples for form in forms),
            num_tokens=sum(form.num_tokens for form in forms),
            num_supervised=sum(form.num_supervised for form in forms),
        )


def sample_source(source: SourceFile, limits: Limits, effort: Effort, tokenise: Tokeniser | None) -> SourceSample:
    """Read and tokenise first rows of a source. Without a tokeniser no row gives tokens.

    Raises `Refused` for what would stop ingestion: no such file, a pattern without a match, an unknown format, a
    mapping that makes no conversation.
    """
    files = expand([source])
    refuse_mapping(source, shown(source.path))
    num_bytes = sum(_size(file) for file in files)
    chosen = sorted({0, len(files) // 2, len(files) - 1})
    said: list[Turns | PromptOnly | Reason] = []
    unreadable: list[FileUnreadable] = []
    whole = len(chosen) == len(files)
    for at in chosen:
        try:
            rows, ended = _first_rows(files[at], limits, effort)
            said += rows
            whole = whole and ended
        except FileUnreadable as refusal:
            unreadable.append(refusal)
    taken = [turns for turns in said if isinstance(turns, Turns)]
    prompts = [turns for turns in said if isinstance(turns, PromptOnly)]
    pairs = _tokenised(taken, tokenise, effort) if tokenise else []
    samples = [(turns, outcome) for turns, outcome in pairs if isinstance(outcome, Sample)]
    return SourceSample(
        where=shown(source.path),
        weight=source.weight,
        num_files=len(files),
        num_bytes=num_bytes,
        num_files_read=len(chosen),
        unreadable=tuple(unreadable),
        num_taken=len(taken),
        num_characters=sum(turns.size for turns in taken),
        num_prompts=len(prompts),
        rejected=Counter[str]([row for row in said if isinstance(row, str)] + [prompt.reason for prompt in prompts]),
        dropped=Counter[str](outcome.reason for _, outcome in pairs if isinstance(outcome, DroppedSample)),
        chats=_coverage([sample for turns, sample in samples if turns.messages]),
        tokenised=_coverage([sample for turns, sample in samples if turns.tokenised is not None]),
        documents=_coverage([sample for turns, sample in samples if turns.document is not None]),
        token_ids=frozenset(token for _, sample in samples for token in np.unique(sample.input_ids).tolist()),
        lengths=tuple((sample.num_tokens, sample.num_supervised) for _, sample in samples),
        whole=whole,
    )


def _size(file: SourceFile) -> int:
    if not file.path.is_file():
        raise Refused("there is no such file", where=shown(file.path), fix="correct data.sources")
    return file.path.stat().st_size


def _first_rows(file: SourceFile, limits: Limits, effort: Effort) -> tuple[list[Turns | PromptOnly | Reason], bool]:
    """What each row says, or why it is rejected; and whether the file has no more."""
    name, began, characters = shown(file.path), time.monotonic(), 0
    known = file.format or detect_format(file.path, name=name, limits=limits)
    rows, found = read_rows(file.path, known, name=name, limits=limits), list[Turns | PromptOnly | Reason]()
    for row in islice(rows, effort.rows):
        for said in [row.reason] if isinstance(row, BadRow) else _said(row.value, file.mapping):
            characters += said.size if isinstance(said, Turns) else 0
            found.append(said)
        if characters >= effort.characters or time.monotonic() - began >= effort.seconds:
            return found, False
    return found, next(rows, None) is None


def _said(row: Mapping[str, object], mapping: Mapping[str, str]) -> Iterator[Turns | PromptOnly | Reason]:
    """As ingestion judges a row, ids aside: one verdict for each row inside it."""
    try:
        values = unfold(row)
    except RowError as fault:
        yield fault.reason
        return
    for value in values:
        try:
            yield read_turns(value, mapping)
        except PromptOnly as prompt:
            yield prompt
        except RowError as fault:
            yield fault.reason


def _tokenised(
    taken: Sequence[Turns], tokenise: Tokeniser, effort: Effort
) -> list[tuple[Turns, Sample | DroppedSample]]:
    """The outcome of each row that is not too long to be tokenised here."""
    short = [turns for turns in taken if turns.document is not None or turns.size <= effort.characters]
    conversations = [
        Conversation(
            conversation_id=f"row {number}",
            messages=turns.messages,
            split="train",
            file="sample",
            line=number,
            tools=turns.tools,
            document=None if turns.document is None else turns.document[: effort.characters],
            tokenised=turns.tokenised,
        )
        for number, turns in enumerate(short, start=1)
    ]
    return list(zip(short, tokenise(conversations), strict=True))


def _coverage(samples: Sequence[Sample]) -> Coverage:
    return Coverage(
        num_samples=len(samples),
        num_tokens=sum(sample.num_tokens for sample in samples),
        num_supervised=sum(sample.num_supervised for sample in samples),
    )
