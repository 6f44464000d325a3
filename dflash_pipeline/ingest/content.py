"""The identity of what a conversation says: equal digests, equal tokens under equal rules."""

from __future__ import annotations

import hashlib

from pydantic_core import to_json

from dflash_pipeline.contracts.conversation import Conversation

DIGEST_BYTES = 32


def content_digest(conversation: Conversation) -> bytes:
    """SHA-256 of everything that its tokens depend on; not of its id, its place or its side of the split."""
    tokenised = conversation.tokenised
    said = [
        [[m.role, m.content, m.complete, m.reasoning, m.tool_calls] for m in conversation.messages],
        conversation.tools,
        conversation.document,
        tokenised and [tokenised.token_ids, tokenised.loss_mask],
    ]
    return hashlib.sha256(to_json(said)).digest()
