"""Conversations to samples: token ids and supervised token spans, in one pass over the text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Literal

import numpy as np
import numpy.typing as npt

from dflash_pipeline.contracts.conversation import Conversation
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.sample import DroppedSample, DropReason, Sample
from dflash_pipeline.ingest.chat import ChatRenderer, NotRendered, Rendered
from dflash_pipeline.ingest.spans import Span

CONVERSATIONS_AT_ONCE = 256
"""Texts the tokenizer gets together, so that it can use every core. Changes speed, never a token."""


def tokenise(
    conversations: Iterable[Conversation],
    renderer: ChatRenderer,
    *,
    max_length: int,
    overlong: Literal["truncate", "drop"],
    supervise: Literal["all", "last"] = "all",
) -> Iterator[Sample | DroppedSample]:
    """One sample or one reason for each conversation, in the order given.

    A text above `max_length` tokens is cut on the right, with nothing added, or dropped. `supervise="last"` puts a loss
    on the last assistant turn alone. A sample needs two supervised tokens in a row: one to draft from, one to draft.
    """
    if max_length < 2:
        raise Refused(
            f"max_length {max_length} leaves nothing to draft", where="tokenise", fix="allow at least 2 tokens"
        )
    rest = iter(conversations)
    while batch := list(islice(rest, CONVERSATIONS_AT_ONCE)):
        outcomes = [_rendered(conversation, renderer) for conversation in batch]
        encodings = _encoded([o.text for o in outcomes if isinstance(o, Rendered)], renderer)
        for conversation, outcome in zip(batch, outcomes, strict=True):
            if not isinstance(outcome, Rendered):
                yield DroppedSample(conversation_id=conversation.conversation_id, reason=outcome)
                continue
            ids, offsets = next(encodings)
            characters = outcome.spans if supervise == "all" else outcome.spans[-1:]
            spans = token_spans(characters, offsets)
            yield _sample(conversation, ids, spans, max_length=max_length, drop=overlong == "drop")


def token_spans(characters: Sequence[Span], offsets: npt.NDArray[np.int64]) -> list[Span]:
    """Runs of tokens that lie wholly inside the character spans; `offsets` holds each token's first and last + 1.

    Spans that touch become one. A token across a span's edge stands for text of the template too, and is left out.
    """
    starts, ends = offsets[:, 0], offsets[:, 1]
    runs: list[Span] = []
    for first, last in characters:
        # By its end as well: some tokenizers report a lone space as nothing, at its right edge.
        low = max(np.searchsorted(starts, first, "left"), np.searchsorted(ends, first, "right"))
        high = np.searchsorted(ends, last, "right")
        if low >= high:
            continue
        if runs and runs[-1][1] == low:
            runs[-1] = (runs[-1][0], int(high))
        else:
            runs.append((int(low), int(high)))
    return runs


def _rendered(conversation: Conversation, renderer: ChatRenderer) -> Rendered | DropReason:
    # One conversation that a template refuses must not cost the others; the reason is counted.
    try:
        return renderer.render(conversation)
    except NotRendered as refusal:
        return refusal.reason


def _encoded(
    texts: Sequence[str], renderer: ChatRenderer
) -> Iterator[tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]]:
    if not texts:
        return
    # The template has printed every special token already.
    batch = renderer.tokenizer(list(texts), add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    for ids, offsets in zip(batch["input_ids"], batch["offset_mapping"], strict=True):
        yield np.asarray(ids, dtype=np.int32), np.asarray(offsets, dtype=np.int64).reshape(-1, 2)


def _sample(
    conversation: Conversation, ids: npt.NDArray[np.int32], spans: Sequence[Span], *, max_length: int, drop: bool
) -> Sample | DroppedSample:
    kept = [(start, min(end, max_length)) for start, end in spans if start < max_length]
    reason: DropReason | None = None
    if drop and ids.size > max_length:
        reason = "too_long"
    elif not kept:
        reason = "no_supervised_tokens"
    elif all(end - start < 2 for start, end in kept):
        reason = "too_few_supervised_tokens"
    if reason is not None:
        return DroppedSample(conversation_id=conversation.conversation_id, reason=reason)
    return Sample(
        conversation_id=conversation.conversation_id,
        split=conversation.split,
        # A copy: a view would keep the whole of an overlong text alive.
        input_ids=ids[:max_length].copy(),
        spans=tuple(kept),
    )
