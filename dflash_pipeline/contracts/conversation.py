"""What ingestion yields: conversations, the rows it refused, and counts that add up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from dflash_pipeline.contracts.errors import ContractBroken

Role = Literal["system", "user", "assistant", "tool"]
Split = Literal["train", "validation"]
_ROLES = get_args(Role)

Reason = Literal[
    "row_too_large",
    "invalid_utf8",
    "too_deep",
    "malformed_json",
    "duplicate_key",
    "non_finite_number",
    "number_out_of_range",
    "lone_surrogate",
    "malformed_csv",
    "wrong_number_of_fields",
    "not_an_object",
    "bad_id",
    "no_messages",
    "bad_message",
    "bad_role",
    "ambiguous_fields",
    "missing_field",
    "missing_content",
    "unsupported_content",
    "bad_tool_calls",
    "bad_tools",
    "starts_with_assistant",
    "starts_with_tool",
    "no_assistant",
    "empty_assistant",
    "prompt_without_answer",
    "empty_document",
    "bad_instances",
    "bad_tokens",
    "no_loss_mask",
    "duplicate_id_conflict",
]
"""Why a row was refused: one name per reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One turn, its text byte for byte as in the source or as the target wrote it."""

    role: Role
    content: str
    complete: bool = True
    """False: an answer cut at its token limit, so that no end marker follows it."""
    reasoning: str | None = None
    """The thought that came in a field of its own."""
    tool_calls: str | None = None
    """A JSON list of objects, without spaces, keys in the order of the source."""

    def __post_init__(self) -> None:
        if self.role not in _ROLES:
            raise ContractBroken(f"role {self.role!r}", where="message", fix=f"use one of {', '.join(_ROLES)}")
        if self.role != "assistant" and not (self.complete and self.reasoning is None and self.tool_calls is None):
            raise ContractBroken(
                f"a {self.role} turn that is cut, reasons or calls tools",
                where="message",
                fix="keep complete=False, reasoning and tool_calls for assistant turns",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class PreTokenised:
    """A row that came as tokens of the target's tokenizer: its ids, and which of them carry a loss."""

    token_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]

    def __post_init__(self) -> None:
        if not self.token_ids or len(self.loss_mask) != len(self.token_ids):
            raise ContractBroken(
                f"{len(self.token_ids)} token ids with a loss mask of {len(self.loss_mask)}",
                where="pre-tokenised row",
                fix="give at least one token, and one mark a token",
            )
        if min(self.token_ids) < 0 or max(self.token_ids) >= 2**31:
            raise ContractBroken(
                f"token ids from {min(self.token_ids)} to {max(self.token_ids)}",
                where="pre-tokenised row",
                fix="give ids of 0 and more that fit into 32 bits",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversation:
    """An accepted row, in one of three forms.

    `messages`: system turns if any, then a user's, and somewhere after it an assistant's. `document`: raw text, all of
    it supervised, which no template touches. `tokenised`: tokens as they are. Of the last two, messages are empty.
    """

    conversation_id: str
    messages: tuple[Message, ...] = ()
    split: Split
    file: str
    line: int
    """Line of a file of lines or row of an array or table, from 1."""
    tools: str | None = None
    """A JSON list of the tools on offer, as `Message.tool_calls` is one."""
    document: str | None = None
    tokenised: PreTokenised | None = None

    def __post_init__(self) -> None:
        where = f"conversation {self.conversation_id!r}, {self.file} line {self.line}"
        if not self.conversation_id:
            raise ContractBroken("a conversation without an id", where=where, fix="derive one from its content")
        if self.split not in get_args(Split) or self.line < 1:
            raise ContractBroken(
                f"split {self.split!r}, line {self.line}", where=where, fix="use train or validation, lines from 1"
            )
        forms = (bool(self.messages), self.document is not None, self.tokenised is not None)
        if forms in ((False, True, False), (False, False, True)):
            if self.document == "":
                raise ContractBroken("an empty document", where=where, fix="reject the row instead")
            return
        if any(forms[1:]):
            raise ContractBroken(
                "more than one of messages, document and tokens", where=where, fix="give one of the three"
            )
        roles = [message.role for message in self.messages if message.role != "system"]
        if roles[:1] != ["user"] or "assistant" not in roles:
            raise ContractBroken(
                f"turns {', '.join(roles) or '(none)'} after the system's",
                where=where,
                fix="a conversation starts with a user turn and holds an assistant turn; reject the row instead",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class RejectedRow:
    """A row that was not taken, found again by file, line and byte offset."""

    file: str
    line: int
    byte_offset: int
    """Of the row's first byte, in the file as it lies on disk; of a compressed file, in what it unpacks to; of Parquet,
    the first byte of the row's group."""
    conversation_id: str | None
    """None when the row had no id, or was not read far enough to know."""
    reason: Reason
    excerpt: str
    """The row's first characters, for a person to recognise it by."""

    def __post_init__(self) -> None:
        if self.reason not in get_args(Reason) or self.line < 1 or self.byte_offset < 0:
            raise ContractBroken(
                f"reason {self.reason!r}, line {self.line}, byte {self.byte_offset}",
                where=f"rejected row of {self.file}",
                fix="use a reason of contracts/conversation.py; count lines from 1 and bytes from 0",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceReport:
    """What one file gave. Its rows are accepted + rejected + exact duplicates."""

    file: str
    sha256: str
    accepted: int
    rejected: int
    exact_duplicates: int
    error: str | None
    """Why the file as a whole was not taken; nothing of it is then kept or counted."""

    def __post_init__(self) -> None:
        counts = (self.accepted, self.rejected, self.exact_duplicates)
        if min(counts) < 0 or (self.error is not None and any(counts)):
            raise ContractBroken(
                f"accepted, rejected, duplicates {counts} with error {self.error!r}",
                where=f"source {self.file}",
                fix="count from 0, and keep nothing of a file that failed",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Ingestion:
    """One reading of all sources under one set of settings: the totals of its files."""

    fingerprint: str
    accepted: int
    rejected: int
    exact_duplicates: int
    num_train: int
    num_validation: int
    sources: tuple[SourceReport, ...]
    by_reason: dict[str, int]
    """Rejected rows by `Reason`."""
    num_prompts: int = 0
    """Distinct prompts among the rejected rows: no answer came with them, but the target can give one."""

    def __post_init__(self) -> None:
        sources = self.sources
        sums = (
            ("accepted", self.accepted, sum(s.accepted for s in sources), "over the sources"),
            ("rejected", self.rejected, sum(s.rejected for s in sources), "over the sources"),
            ("exact_duplicates", self.exact_duplicates, sum(s.exact_duplicates for s in sources), "over the sources"),
            ("accepted", self.accepted, self.num_train + self.num_validation, "as train + validation"),
            ("rejected", self.rejected, sum(self.by_reason.values()), "by reason"),
        )
        for name, total, added, how in sums:
            if total != added:
                raise ContractBroken(
                    f"{name} is {total}, but {added} {how}",
                    where=f"ingestion {self.fingerprint}",
                    fix="count every row of every file exactly once",
                )
        odd = [reason for reason, count in self.by_reason.items() if reason not in get_args(Reason) or count < 1]
        if odd or min(self.num_train, self.num_validation) < 0 or not 0 <= self.num_prompts <= self.rejected:
            raise ContractBroken(
                f"reasons {odd}, {self.num_train} train, {self.num_validation} validation, {self.num_prompts} prompts",
                where=f"ingestion {self.fingerprint}",
                fix="name reasons of contracts/conversation.py that occurred, and count from 0",
            )

    @property
    def num_rows(self) -> int:
        return self.accepted + self.rejected + self.exact_duplicates
