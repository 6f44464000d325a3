"""A row that reads as a conversation, on its way into the warehouse."""

from __future__ import annotations

from dataclasses import dataclass

from dflash_pipeline.contracts.conversation import Message, PreTokenised
from dflash_pipeline.contracts.errors import ContractBroken

DIGEST_BYTES = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """What a good row says and where it lies. Whether it is the first of its id is known when all rows are read."""

    conversation_id: str
    messages: tuple[Message, ...]
    tools: str | None
    document: str | None
    tokenised: PreTokenised | None
    answered: bool
    """False: a prompt. An assistant turn without text stands wherever the target is to speak."""
    line: int
    byte_offset: int
    excerpt: str
    digest: bytes
    """Of the content: rows with one id and one digest are the same row."""
    prompt_hash: int
    """Decides the side, 64 bits."""
    size: int
    """About how much memory it takes: its characters, or four bytes a token."""

    def __post_init__(self) -> None:
        if not self.conversation_id or len(self.digest) != DIGEST_BYTES or not 0 <= self.prompt_hash < 2**64:
            raise ContractBroken(
                f"id {self.conversation_id!r}, digest of {len(self.digest)} bytes, prompt hash {self.prompt_hash}",
                where=f"row at line {self.line}",
                fix=f"give an id, a digest of {DIGEST_BYTES} bytes and a hash of 64 bits",
            )
