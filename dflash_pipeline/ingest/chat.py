"""Conversations to the exact text the target sees, by its own chat template, and what of it the model wrote."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_pipeline.contracts.conversation import Conversation, Message
from dflash_pipeline.contracts.errors import Refused, refusing
from dflash_pipeline.contracts.fingerprint import fingerprint
from dflash_pipeline.ingest.control import ControlText, Range, shifted, unmasked
from dflash_pipeline.ingest.spans import Span, TurnForm, TurnSpan, find_turns
from dflash_pipeline.ingest.template import ChatTemplate, NotRendered, template_text
from dflash_pipeline.ingest.tokenizer import loaded_tokenizer, tokenizer_digests

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MASK_RULE = 2
"""Part of every template's identity: raised when other characters become supervised."""

_PROBE = (Message(role="user", content="Hello?"), Message(role="assistant", content="Yes."))
_CALL = '[{"type":"function","function":{"name":"probe_of_calls","arguments":{}}}]'
_CALL_PROBE = (_PROBE[0], Message(role="assistant", content="", tool_calls=_CALL))


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendered:
    """A conversation as text, and its assistant turns in their order."""

    text: str
    turns: tuple[TurnSpan, ...]
    kept: tuple[Range, ...] = ()
    """Characters that spell a control token and are text all the same, because a message holds them."""

    @property
    def spans(self) -> tuple[Span, ...]:
        """The characters that the model wrote: one span an assistant turn."""
        return tuple((turn.start, turn.end) for turn in self.turns)


@dataclass(frozen=True, kw_only=True, slots=True)
class Renderer:
    """A template, and what was learned of how it prints. Cheap to send to another process."""

    template: ChatTemplate
    form: TurnForm
    control: ControlText

    def render(self, conversation: Conversation) -> Rendered:
        """The conversation and its assistant turns, at a cost linear in its length.

        `NotRendered` for a conversation that the template refuses or that cannot be followed through it.
        """
        where = f"conversation {conversation.conversation_id!r}, {conversation.file} line {conversation.line}"
        messages, tools = conversation.messages, conversation.tools
        if not self.control.spelled(messages, tools):
            return self.follow(messages, tools, where)
        plain = self.template.render(self.template.as_dicts(messages), tools, where=where)
        for masked in self.control.masked(messages, tools):
            rendered = self.follow(masked.messages, masked.tools, where)
            text, marks = unmasked(rendered.text)
            # A template may read such text itself, and print otherwise when it is not there.
            if plain == text or (plain.startswith(text) and not messages[-1].complete):
                turns = tuple(_without_marks(turn, marks) for turn in rendered.turns)
                return Rendered(text=text, turns=turns, kept=self.control.kept(text, marks))
        raise NotRendered(
            "a message spells control tokens that the chat template reads as its own",
            where=where,
            fix="take the control tokens out of the message",
            reason="control_text",
        )

    def follow(self, messages: Sequence[Message], tools: str | None, where: str) -> Rendered:
        """As `render`, for messages that spell no control token."""
        dicts = self.template.as_dicts(messages)
        plain = self.template.render(dicts, tools, where=where)
        cut = frozenset(i for i, message in enumerate(messages) if not message.complete)
        turns = find_turns(
            dicts,
            lambda marked: self.template.render(marked, tools, where=where),
            plain,
            form=self.form,
            cut=cut,
        )
        if turns is None:
            raise NotRendered(
                "the chat template rewrites the assistant's words, so that they cannot be found in its text",
                where=where,
                fix="give a template that prints each answer once, as `target.chat_template` in the recipe",
                reason="spans_not_found",
            )
        # After an answer that was cut, the template's end marker would be a lie about the model.
        text = plain if messages[-1].complete or not turns else plain[: turns[-1].end]
        return Rendered(text=text, turns=turns)


class ChatRenderer:
    """Renders by a target's tokenizer folder, or by a Jinja file in place of the folder's template.

    The text carries every special token: tokenise it without adding any. A template that cannot be followed at all is
    refused here, as is one that knows nothing of `thinking` when that is given; one conversation that cannot, in
    `render`.
    """

    def __init__(self, folder: Path, template: Path | None = None, *, thinking: bool | None = None) -> None:
        loaded = loaded_tokenizer(folder)
        self.tokenizer, self.encoder = loaded.tokenizer, loaded.encoder
        self._where = f"chat template {template or folder}"
        text = template_text(self.tokenizer, folder, template)
        tokens = self.tokenizer.special_tokens_map
        self._template = ChatTemplate(text=text, special_tokens=tokens, thinking=thinking)
        if thinking is not None:
            self._check_thinking(thinking)
        self.renderer = self._probed(_configured_ends(self.tokenizer, folder))
        self.tokenizer_fingerprint = fingerprint(files=tokenizer_digests(folder))
        # Named only where it is set: what was made before there was a mode keeps its name.
        mode = {} if thinking is None else {"thinking": thinking}
        self.template_fingerprint = fingerprint(template=text, form=self.renderer.form, rule=MASK_RULE, **mode)

    def render(self, conversation: Conversation) -> Rendered:
        """The whole conversation and its supervised characters, at a cost linear in its length."""
        return self.renderer.render(conversation)

    def prompt(self, messages: Sequence[Message], *, tools: str | None = None) -> str:
        """The text after which the target answers: these messages, then the generation prompt."""
        where = f"{self._where}, prompt of {len(messages)} messages"
        template = self.renderer.template
        return template.render(template.as_dicts(messages), tools, where=where, prompt=True)

    def _check_thinking(self, thinking: bool) -> None:
        asked = self._template.as_dicts(_PROBE[:1])
        modes = (self._template, replace(self._template, thinking=not thinking))
        if len({mode.render(asked, None, where=self._where, prompt=True) for mode in modes}) == 1:
            raise Refused(
                "the chat template asks in the same words with thinking on and off",
                where=self._where,
                fix="leave target.thinking out, or give a template that reads `enable_thinking`",
            )

    def _probed(self, configured: set[str]) -> Renderer:
        """Learn from the smallest conversation how the template opens and closes an answer."""
        control = ControlText(self.tokenizer.backend_tokenizer)
        unknown = Renderer(template=self._template, form=TurnForm(headers=(), end_markers=()), control=control)
        rendered = unknown.follow(_PROBE, None, self._where)
        if not rendered.turns:
            raise self._unfollowable("prints nothing of an assistant's turn")
        [turn] = rendered.turns
        if rendered.text.find(_PROBE[0].content) < 0:
            # Whatever it printed would carry the loss: a mask of all ones.
            raise self._unfollowable("prints nothing of a user's turn")
        after = rendered.text[turn.end :]
        added = [token.content for token in self.tokenizer.added_tokens_decoder.values() if token.content.strip()]
        following = max((token for token in added if after.startswith(token)), key=len, default=None)
        ends = configured | ({following} if following else set())

        asked = self._template.render(self._template.as_dicts(_PROBE[:1]), None, where=self._where)
        opened = self._template.render(self._template.as_dicts(_PROBE[:1]), None, where=self._where, prompt=True)
        header = opened.removeprefix(asked) if opened.startswith(asked) else ""
        # Some prompts open the thought already; in earlier turns the same header stands without it.
        shorter = header.partition("<think>")[0]
        headers = tuple(h for h in dict.fromkeys((header, shorter)) if h.strip())
        form = TurnForm(
            headers=headers,
            end_markers=tuple(sorted(ends, key=lambda t: (-len(t), t))),
            own=bool(headers) and any(token in headers[-1] for token in added) and ends <= set(added),
        )
        template = replace(self._template, calls_as_text=not self._prints_calls())
        return Renderer(template=template, form=form, control=control)

    def _prints_calls(self) -> bool:
        try:
            text = self._template.render(self._template.as_dicts(_CALL_PROBE), None, where=self._where)
        except NotRendered:
            return False
        return "probe_of_calls" in text

    def _unfollowable(self, what: str) -> Refused:
        return Refused(
            f"the chat template {what}",
            where=self._where,
            fix="give one that does, as `target.chat_template` in the recipe",
        )


def _without_marks(turn: TurnSpan, marks: Sequence[int]) -> TurnSpan:
    return TurnSpan(
        start=shifted(turn.start, marks),
        end=shifted(turn.end, marks),
        header_end=shifted(turn.header_end, marks),
        thoughts=tuple((shifted(a, marks), shifted(b, marks)) for a, b in turn.thoughts),
    )


def _configured_ends(tokenizer: PreTrainedTokenizerBase, folder: Path) -> set[str]:
    """The tokens at which generation stops: the tokenizer's, and those of the model's generation settings."""
    ends = {tokenizer.eos_token} if tokenizer.eos_token else set()
    settings = folder / "generation_config.json"
    if settings.is_file():
        with refusing("no generation settings can be read", where=str(settings), fix="correct its eos_token_id"):
            ids = json.loads(settings.read_text(encoding="utf-8")).get("eos_token_id") or []
            ends.update(tokenizer.convert_ids_to_tokens(ids if isinstance(ids, list) else [ids]))
    return {end for end in ends if end}
