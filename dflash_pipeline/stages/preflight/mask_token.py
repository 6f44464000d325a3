"""Whether the mask token means nothing else: what stands for the unknown must not be said by any text."""

from __future__ import annotations

from collections.abc import Iterator

from transformers import PreTrainedTokenizerBase

from dflash_pipeline.contracts.conversation import Conversation, Message
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.model.config import default_mask_token_id
from dflash_pipeline.stages.preflight.fault import Fault
from dflash_pipeline.stages.preflight.subject import Subject

_WHERE = "drafter.mask_token_id"
_ROLES = (
    ("eos_token_id", "the tokenizer's end token"),
    ("bos_token_id", "the tokenizer's first token"),
    ("pad_token_id", "the tokenizer's padding"),
    ("unk_token_id", "what the tokenizer makes of unknown text"),
    ("sep_token_id", "the tokenizer's separator"),
    ("cls_token_id", "the tokenizer's class token"),
)
_CHAT = Conversation(
    conversation_id="chat",
    messages=(Message(role="user", content="Hello?"), Message(role="assistant", content="Yes.")),
    split="train",
    file="chat",
    line=1,
)


def check_mask_token(subject: Subject) -> Iterator[Fault]:
    """It has a row, and no text, template or tokenizer gives it a meaning. Otherwise one that would do is proposed."""
    shape, tokenizer, wanted = subject.target.shape, subject.target.tokenizer, subject.recipe.drafter.mask_token_id
    if shape is None or tokenizer is None:
        return
    meanings = _Meanings(subject, tokenizer)
    fix = f"set mask_token_id to {meanings.proposal(shape.vocab_size)}"
    if wanted is not None:
        if wanted >= shape.vocab_size:
            yield Fault(
                where=_WHERE, what=f"mask token {wanted} has no row among {shape.vocab_size} embeddings", fix=fix
            )
        if meaning := meanings.of(wanted):
            yield Fault(where=_WHERE, what=f"mask token {wanted} is {meaning}", fix=fix)
        return
    try:
        taken = default_mask_token_id(tokenizer, shape.vocab_size)
    except Refused as refusal:
        yield Fault(where=refusal.where, what=refusal.what, fix=fix)
        return
    if meaning := meanings.of(taken):
        yield Fault(where=_WHERE, what=f"mask token {taken}, taken because none is set, is {meaning}", fix=fix)


class _Meanings:
    """What tokens say to a target, as far as that is known."""

    def __init__(self, subject: Subject, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._stop_ids = subject.target.stop_ids
        self._samples = subject.samples
        self._used = frozenset(tokenizer.get_vocab().values())
        renderer = subject.target.renderer
        text = "" if renderer is None else renderer.render(_CHAT).text
        self._template = frozenset(tokenizer(text, add_special_tokens=False)["input_ids"])

    def of(self, token: int) -> str | None:
        """What the token means; None for one that is free to stand for positions to be drafted."""
        if token not in self._used:
            return None
        name = repr(self._tokenizer.convert_ids_to_tokens(token))
        for role, meaning in _ROLES:
            if getattr(self._tokenizer, role, None) == token:
                return f"{name}, {meaning}"
        if token in self._stop_ids:
            return f"{name}, with which the target ends its answers"
        # Reserved tokens are added ones; whatever else is in a vocabulary stands for text.
        if token not in self._tokenizer.added_tokens_decoder:
            return f"{name}, a piece of ordinary text"
        if token in self._template:
            return f"{name}, which the chat template prints"
        found = next((sample.where for sample in self._samples if token in sample.token_ids), None)
        return f"{name}, which occurs in {found}" if found else None

    def proposal(self, vocab_size: int) -> str:
        """The tokenizer's mask token, an unused row, or a reserved token."""
        reserved = sorted(self._tokenizer.added_tokens_decoder)
        for token in (self._tokenizer.mask_token_id, max(self._used) + 1, *reserved):
            if token is not None and token < vocab_size and self.of(token) is None:
                kind = "an unused row" if token not in self._used else self._tokenizer.convert_ids_to_tokens(token)
                return f"{token} ({kind})"
        return "a token that does not occur in the data"
