"""Whether the answers of a conversation hold thoughts, whatever form it came in."""

from __future__ import annotations

import re

from dflash_pipeline.contracts.conversation import Conversation
from dflash_pipeline.ingest.chat import ChatRenderer
from dflash_pipeline.ingest.spans import marked_turns

_OPEN, _CLOSE = "<think>", "</think>"
# The first may be opened by the generation prompt, the last may never be closed.
_THOUGHT = re.compile(r"(?:\A|<think>)((?:(?!</?think>).)*)</think>|<think>((?:(?!</?think>).)*)\Z", re.DOTALL)


def holds_thought(text: str) -> bool:
    """Whether there is thinking in an answer's text. An empty thought is none: templates put it there to say so."""
    if _OPEN not in text and _CLOSE not in text:
        return False
    return any(part and part.strip() for found in _THOUGHT.finditer(text) for part in found.groups())


def open_thought(prompt: str) -> str:
    """What a prompt ends with when it opens a thought for the target to go on with: the tag and the space after it."""
    at = prompt.rfind(_OPEN)
    rest = prompt[at + len(_OPEN) :]
    return prompt[at:] if at >= 0 and not rest.strip() else ""


class ThoughtFinder:
    """Looks into conversations as one target's tokenizer and template read them."""

    def __init__(self, renderer: ChatRenderer) -> None:
        self._tokenizer = renderer.tokenizer
        self._form = renderer.renderer.form
        # Not `get_vocab`, which lists the whole vocabulary for it.
        self._close: int | None = self._tokenizer.backend_tokenizer.token_to_id(_CLOSE)

    def thinks(self, conversation: Conversation) -> bool | None:
        """Whether any answer holds a thought; None for a text without answers."""
        if conversation.document is not None:
            turns = marked_turns(conversation.document, self._form)
            answers = [conversation.document[turn.start : turn.end] for turn in turns]
            return any(map(holds_thought, answers)) if answers else None
        if conversation.tokenised is not None:
            ids = conversation.tokenised.token_ids
            return self._close in ids and holds_thought(str(self._tokenizer.decode(list(ids))))
        said = [message for message in conversation.messages if message.role == "assistant"]
        return any(holds_thought(m.content) or bool((m.reasoning or "").strip()) for m in said)
