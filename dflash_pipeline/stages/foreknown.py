"""What is settled about a conversation before it is tokenised: if it is left out, how often it stands, known tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dflash_pipeline.contracts.conversation import Conversation
from dflash_pipeline.contracts.sample import DroppedSample, Sample
from dflash_pipeline.ingest.tokenise import Outcome
from dflash_pipeline.ingest.weights import copies
from dflash_pipeline.store.known_tokens import EarlierSnapshots, KnownTokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Foreknown:
    """The exclusions, the weights and the earlier snapshots, asked about one conversation after another."""

    earlier: EarlierSnapshots
    excluded: frozenset[str]
    weight_of: Mapping[str, float]
    """By file."""

    def copies(self, conversation: Conversation) -> int:
        """How often its sample is to stand in the snapshot. What is held out is neither repeated nor thinned."""
        if conversation.split != "train":
            return 1
        return copies(conversation.conversation_id, self.weight_of[conversation.file])

    def outcome(self, conversation: Conversation, digest: bytes) -> Outcome | None:
        """Why it is not looked at, or what an earlier snapshot made of it."""
        conversation_id = conversation.conversation_id
        if conversation_id in self.excluded:
            return DroppedSample(conversation_id=conversation_id, reason="excluded")
        if not self.copies(conversation):
            return DroppedSample(conversation_id=conversation_id, reason="weight")
        known = self.earlier.find(digest)
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
