"""One file to verdicts: each of its rows a candidate for the corpus, or rejected for one named reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from dflash_pipeline.contracts.candidate import DIGEST_BYTES, Candidate
from dflash_pipeline.contracts.conversation import Reason, RejectedRow
from dflash_pipeline.contracts.fingerprint import fingerprint
from dflash_pipeline.faults import fault_point
from dflash_pipeline.ingest.conversation import PromptOnly, Turns, derived_id, read_turns, row_id
from dflash_pipeline.ingest.formats import read_rows
from dflash_pipeline.ingest.limits import Limits
from dflash_pipeline.ingest.rows import BadRow, Row, RowError
from dflash_pipeline.ingest.shapes import unfold
from dflash_pipeline.ingest.sources import KnownFile
from dflash_pipeline.ingest.split import prompt_hash
from dflash_pipeline.ingest.unpack import FileUnreadable

INGEST_VERSION = 2
"""Part of every ingestion's identity: raised when the same files would give other conversations."""

Verdict = Candidate | RejectedRow


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What, beside the files, decides what comes of them."""

    max_rows: int | None
    """Of each file."""
    validation_fraction: float
    limits: Limits


def ingestion_fingerprint(files: Sequence[KnownFile], rules: Rules) -> str:
    """Identity of what comes of these files: their content in their order and the rules, not names or places."""
    return fingerprint(
        version=INGEST_VERSION,
        # An array and a list of lines may have the same bytes, so the format is part of the identity.
        files=[(file.sha256, file.format, file.source.mapping) for file in files],
        rules=rules,
    )


def read_verdicts(file: KnownFile, rules: Rules) -> Iterator[list[Verdict]]:
    """The verdicts of each row in turn; one row may hold several conversations, and a prompt gives two verdicts.

    Raises `FileUnreadable`, as late as it is met, when the file as a whole cannot be taken: what was given before is
    then void. Raises `Refused` when the file is not what it was when it was looked at.
    """
    if file.error is not None or file.format is None:
        raise FileUnreadable(file.error or "no format", where=file.name, fix="correct the file")
    file.refuse_changed()
    fault_point("ingest.before-parse")
    rows = read_rows(file.source.path, file.format, name=file.name, limits=rules.limits)
    for row in islice(rows, rules.max_rows):
        yield _verdicts(row, file.source.mapping, file.name)
    file.refuse_changed()
    fault_point("ingest.after-parse")


def _verdicts(row: Row | BadRow, mapping: Mapping[str, str], name: str) -> list[Verdict]:
    if isinstance(row, BadRow):
        return [_rejected(row, row.reason, None, name)]
    try:
        values = unfold(row.value)
    except RowError as fault:
        return [_rejected(row, fault.reason, None, name)]
    return [verdict for value in values for verdict in _of_value(row, value, mapping, name)]


def _of_value(row: Row, value: Mapping[str, object], mapping: Mapping[str, str], name: str) -> list[Verdict]:
    given = None
    try:
        given = row_id(value, mapping.get("id", "id"))
        return [_candidate(row, given, read_turns(value, mapping), answered=True)]
    except PromptOnly as prompt:
        return [
            _rejected(row, prompt.reason, given, name),
            _candidate(row, given, prompt.turns, answered=False),
        ]
    except RowError as fault:
        return [_rejected(row, fault.reason, given, name)]


def _candidate(row: Row, given: str | None, turns: Turns, *, answered: bool) -> Candidate:
    digest = turns.digest
    return Candidate(
        conversation_id=derived_id(digest) if given is None else given,
        messages=turns.messages,
        tools=turns.tools,
        document=turns.document,
        tokenised=turns.tokenised,
        answered=answered,
        line=row.line,
        byte_offset=row.byte_offset,
        excerpt=row.excerpt,
        digest=bytes.fromhex(digest)[:DIGEST_BYTES],
        prompt_hash=prompt_hash(turns.first_user_text),
        size=turns.size,
    )


def _rejected(row: Row | BadRow, reason: Reason, conversation_id: str | None, name: str) -> RejectedRow:
    return RejectedRow(
        file=name,
        line=row.line,
        byte_offset=row.byte_offset,
        conversation_id=conversation_id,
        reason=reason,
        excerpt=row.excerpt,
    )
