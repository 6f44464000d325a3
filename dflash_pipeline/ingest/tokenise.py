"""Conversations to samples: token ids and supervised token spans, in one pass over the text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding

from dflash_pipeline.contracts.conversation import Conversation
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.sample import DroppedSample, DropReason, Sample
from dflash_pipeline.ingest.chat import ChatRenderer, Rendered, Renderer
from dflash_pipeline.ingest.encoder import Ids, TextEncoder
from dflash_pipeline.ingest.spans import Span, marked_turns, without
from dflash_pipeline.ingest.template import NotRendered

Outcome = Sample | DroppedSample
Text = Rendered | DropReason | None
"""Why there is none, or None where none is needed: tokens are there, or the text is a plain document."""

CONVERSATIONS_AT_ONCE = 256
"""Texts the tokenizer gets together, so that it can use every core. Changes speed, never a token."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenRule:
    """What of a conversation becomes tokens, and which of them carry a loss."""

    max_length: int
    """Longest sample in tokens."""
    overlong: Literal["truncate", "drop"] = "truncate"
    """A longer one is cut on the right, with nothing added, or dropped."""
    supervise: Literal["all", "last"] = "all"
    """Assistant turns that carry the loss."""
    thinking: bool = True
    """Whether thoughts carry it too, with their tags."""
    generation_prefix: bool = False
    """Whether what the generation prompt or the template opens after the role header (`<think>`) carries it too."""

    def __post_init__(self) -> None:
        if self.max_length < 2:
            raise Refused(
                f"max_length {self.max_length} leaves nothing to draft", where="tokenise", fix="allow at least 2 tokens"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokeniser:
    """All that turns conversations into samples; can be sent to another process.

    In three steps, so that rendering goes on while the tokenizer works outside of Python.
    """

    renderer: Renderer
    encoder: TextEncoder
    rule: TokenRule

    def __call__(self, conversations: Sequence[Conversation]) -> list[Outcome]:
        """One sample or one reason for each conversation, in the order given."""
        rendered = self.render(conversations)
        return self.finish(conversations, rendered, self.encode(rendered))

    def render(self, conversations: Sequence[Conversation]) -> list[Text]:
        """The text of each conversation, or why there is none."""
        return [self._rendered(conversation) for conversation in conversations]

    def encode(self, rendered: Sequence[Text]) -> list[Encoding]:
        return self.encoder.encode([r.text for r in rendered if isinstance(r, Rendered)])

    def finish(
        self,
        conversations: Sequence[Conversation],
        rendered: Sequence[Text],
        encodings: Sequence[Encoding],
    ) -> list[Outcome]:
        rest = iter(encodings)
        return [
            self._from_text(conversation, outcome, next(rest))
            if isinstance(outcome, Rendered)
            else self._without_template(conversation)
            if outcome is None
            else DroppedSample(conversation_id=conversation.conversation_id, reason=outcome)
            for conversation, outcome in zip(conversations, rendered, strict=True)
        ]

    def _rendered(self, conversation: Conversation) -> Text:
        if conversation.document is not None:
            turns = marked_turns(conversation.document, self.renderer.form)
            return Rendered(text=conversation.document, turns=turns) if turns else None
        if conversation.tokenised is not None:
            return None
        # One conversation that a template refuses must not cost the others; the reason is counted.
        try:
            return self.renderer.render(conversation)
        except NotRendered as refusal:
            return refusal.reason

    def _from_text(self, conversation: Conversation, rendered: Rendered, encoding: Encoding) -> Outcome:
        characters = self._supervised(rendered)
        if rendered.kept:
            encoded = self.encoder.encode_keeping(rendered.text, rendered.kept, characters)
        else:
            encoded = self.encoder.read(encoding, rendered.text, characters)
        if encoded is None:
            return DroppedSample(conversation_id=conversation.conversation_id, reason="control_text")
        return self._sample(conversation, *encoded)

    def _supervised(self, rendered: Rendered) -> list[Span]:
        turns = rendered.turns if self.rule.supervise == "all" else rendered.turns[-1:]
        prefix = self.rule.generation_prefix
        spans = [(turn.header_end if prefix else turn.start, turn.end) for turn in turns]
        return spans if self.rule.thinking else without(spans, [t for turn in turns for t in turn.thoughts])

    def _without_template(self, conversation: Conversation) -> Outcome:
        if conversation.document is not None:
            ids, mask = self.encoder.encode_document(conversation.document)
            return self._sample(conversation, ids, runs(mask))
        assert conversation.tokenised is not None  # By `_rendered`.
        ids = np.array(conversation.tokenised.token_ids, dtype=np.int32)
        if int(ids.max()) >= self.encoder.num_ids:
            return DroppedSample(conversation_id=conversation.conversation_id, reason="unknown_token")
        return self._sample(conversation, ids, runs(np.array(conversation.tokenised.loss_mask, dtype=np.bool_)))

    def _sample(self, conversation: Conversation, ids: Ids, spans: Sequence[Span]) -> Outcome:
        longest = self.rule.max_length
        kept = [(start, min(end, longest)) for start, end in spans if start < longest]
        reason: DropReason | None = None
        if self.rule.overlong == "drop" and ids.size > longest:
            reason = "too_long"
        elif not kept:
            reason = "no_supervised_tokens"
        elif all(end - start < 2 for start, end in kept):
            # One to draft from, one to draft.
            reason = "too_few_supervised_tokens"
        if reason is not None:
            return DroppedSample(conversation_id=conversation.conversation_id, reason=reason)
        return Sample(
            conversation_id=conversation.conversation_id,
            split=conversation.split,
            # A copy: a view would keep the whole of an overlong text alive.
            input_ids=ids[:longest].copy() if ids.size > longest else ids,
            spans=tuple(kept),
            num_cut=max(int(ids.size) - longest, 0),
        )


def tokeniser(renderer: ChatRenderer, rule: TokenRule) -> Tokeniser:
    return Tokeniser(renderer=renderer.renderer, encoder=renderer.encoder, rule=rule)


def tokenise(conversations: Iterable[Conversation], renderer: ChatRenderer, rule: TokenRule) -> Iterator[Outcome]:
    """One sample or one reason for each conversation, in the order given, all in this process."""
    rest, one = iter(conversations), tokeniser(renderer, rule)
    while batch := list(islice(rest, CONVERSATIONS_AT_ONCE)):
        yield from one(batch)


def runs(mask: npt.NDArray[np.bool_]) -> list[Span]:
    """Where a mask is set: from and up to (not with) these positions, ascending."""
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False))
    return [(int(start), int(end)) for start, end in edges.reshape(-1, 2)]
