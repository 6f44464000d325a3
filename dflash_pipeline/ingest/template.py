"""A chat template: messages to text, and what a template's failure is called."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from dflash_pipeline.contracts.conversation import Message
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.sample import DropReason
from dflash_pipeline.ingest.sandbox import compiled

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# What an expression in a template can raise, beside jinja's own errors.
_TEMPLATE_ERRORS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
# A template that prints today's date would make other tokens tomorrow, under the same fingerprint.
_FIXED_DATE = (
    '{%- macro strftime_now(format) -%}{{ {"%d %b %Y": "26 Jul 2024"}.get(format, "2024-07-26") }}{%- endmacro -%}'
)


class NotRendered(Refused):
    """One conversation that the template refuses, or whose assistant turns cannot be followed through it."""

    def __init__(self, what: str, *, where: str, fix: str, reason: DropReason) -> None:
        super().__init__(what, where=where, fix=fix)
        self.reason: DropReason = reason


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatTemplate:
    """A Jinja template and the tokens it may name. Cheap to send to another process."""

    text: str
    special_tokens: Mapping[str, Any] = field(default_factory=dict)
    """What a template reads as `bos_token`, `eos_token` …"""
    calls_as_text: bool = False
    """Whether the template knows no tool calls: they are then given to it as JSON in the turn's text."""
    thinking: bool | None = None
    """What it is told of thinking, under the names that templates have for it; None for nothing."""

    def render(self, messages: Sequence[dict[str, Any]], tools: str | None, *, where: str, prompt: bool = False) -> str:
        """The conversation as text; `prompt` adds the generation prompt. `NotRendered` when the template fails."""
        try:
            return compiled(self.text)(
                messages=[_aliased(message) for message in messages],
                tools=None if tools is None else json.loads(tools),
                documents=None,
                add_generation_prompt=prompt,
                **({} if self.thinking is None else {"enable_thinking": self.thinking, "thinking": self.thinking}),
                **self.special_tokens,
            )
        except _TEMPLATE_ERRORS as error:
            raise NotRendered(
                f"the chat template fails: {error}",
                where=where,
                fix="correct the conversation, or give another template as `target.chat_template` in the recipe",
                reason="template_error",
            ) from None

    def as_dicts(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Messages in the form that templates read."""
        return [self._as_dict(message) for message in messages]

    def _as_dict(self, message: Message) -> dict[str, Any]:
        seen: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.reasoning is not None:
            seen["reasoning_content"] = message.reasoning
        if message.tool_calls is None:
            return seen
        if self.calls_as_text:
            seen["content"] = f"{message.content}\n{message.tool_calls}" if message.content else message.tool_calls
        else:
            seen["tool_calls"] = [_with_parsed_arguments(call) for call in json.loads(message.tool_calls)]
        return seen


def _aliased(message: dict[str, Any]) -> dict[str, Any]:
    # Some templates read the thought under this name.
    thought = message.get("reasoning_content")
    return message if thought is None else {"thinking": thought, **message}


def template_text(tokenizer: PreTrainedTokenizerBase, folder: Path, template: Path | None) -> str:
    """The text of a Jinja file, or of the template that a tokenizer's folder holds."""
    fix = "name a Jinja file as `target.chat_template` in the recipe"
    try:
        text = template.read_text(encoding="utf-8") if template else tokenizer.get_chat_template()
    except (OSError, ValueError) as error:
        raise Refused(f"no chat template: {error}", where=str(template or folder), fix=fix) from None
    return _FIXED_DATE + text if "strftime_now" in text else text


def _with_parsed_arguments(call: dict[str, Any]) -> dict[str, Any]:
    # Interfaces carry arguments as JSON inside a string; servers parse it before the template prints it as JSON.
    inner = call.get("function", call)
    if not isinstance(inner, dict) or not isinstance(inner.get("arguments"), str):
        return call
    try:
        arguments = json.loads(inner["arguments"])
    except json.JSONDecodeError:
        return call
    parsed = {**inner, "arguments": arguments} if isinstance(arguments, dict) else inner
    return {**call, "function": parsed} if "function" in call else parsed
