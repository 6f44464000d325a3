"""One object to the conversation it holds, or the reason why not. Text is kept character for character."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from dflash_pipeline.contracts.conversation import Message, PreTokenised, Reason
from dflash_pipeline.ingest.messages import objects
from dflash_pipeline.ingest.rows import RowError
from dflash_pipeline.ingest.shapes import (
    CHAT_FIELDS,
    PROMPT_FIELDS,
    chat_messages,
    listed_prompts,
    mapped_messages,
    prompt_messages,
)
from dflash_pipeline.ingest.tokens import read_tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Turns:
    """What a row says, before it has a place in the corpus: messages, a document or tokens."""

    messages: tuple[Message, ...] = ()
    tools: str | None = None
    document: str | None = None
    tokenised: PreTokenised | None = None

    @property
    def digest(self) -> str:
        """SHA-256 of the content: equal digests, equal conversations."""
        if self.document is not None:
            return _digest({"document": self.document})
        if self.tokenised is not None:
            return _digest({"token_ids": self.tokenised.token_ids, "loss_mask": self.tokenised.loss_mask})
        turns = [[m.role, m.content, m.reasoning, m.tool_calls] for m in self.messages]
        return _digest([turns, self.tools])

    @property
    def first_user_text(self) -> str:
        """What decides the side: the first user message; a document; the ids before the first token with a loss."""
        if self.document is not None:
            return self.document
        if self.tokenised is not None:
            ids, mask = self.tokenised.token_ids, self.tokenised.loss_mask
            prompt = ids[: mask.index(True)] if True in mask else ids
            return " ".join(map(str, prompt or ids))
        return next(m.content for m in self.messages if m.role == "user")

    @property
    def size(self) -> int:
        """Its characters, or four bytes a token."""
        size = len(self.tools or "") + len(self.document or "")
        if self.tokenised is not None:
            size += 4 * len(self.tokenised.token_ids)
        for message in self.messages:
            size += len(message.content) + len(message.reasoning or "") + len(message.tool_calls or "")
        return size


class PromptOnly(RowError):
    """A row whose answer is missing. Its `turns` hold an assistant turn without text wherever one belongs."""

    def __init__(self, reason: Reason, turns: Turns) -> None:
        super().__init__(reason)
        self.turns = turns


def row_id(value: Mapping[str, Any], field: str = "id") -> str | None:
    """The id as text: a whole number keeps its digits, a string every character. None when missing, null or empty."""
    given = value.get(field)
    if given is None or given == "":
        return None
    if isinstance(given, bool) or not isinstance(given, str | int):
        raise RowError("bad_id")
    return str(given)


def derived_id(digest: str) -> str:
    """An id for a row that has none, from its text: the same on every run, whatever else is in the files."""
    return f"sha256-{digest[:24]}"


def read_turns(value: Mapping[str, Any], mapping: Mapping[str, str]) -> Turns:
    """The conversation of a row: by `mapping` (what is held to the field that holds it), else by its field names.

    Raises `RowError`, and `PromptOnly` for a row that asks and has no answer.
    """
    if "messages" in mapping or "text" in mapping:
        value = {name: value.get(field) for name, field in mapping.items()}
    elif "user" in mapping:
        messages = _checked(mapped_messages(value, mapping), None)
        return Turns(messages=messages, tools=objects(value.get(mapping.get("tools", "tools")), "bad_tools"))
    elif "tools" in mapping:
        value = {**value, "tools": value.get(mapping["tools"])}
    return _by_field_names(value)


def _by_field_names(value: Mapping[str, Any]) -> Turns:
    fields = {name for name, field in value.items() if field is not None}
    if not fields.isdisjoint(CHAT_FIELDS):
        messages = chat_messages(value)
        lacking: Reason = "no_assistant"
    elif "input_ids" in fields:
        return Turns(tokenised=read_tokens(value))
    elif not fields.isdisjoint(PROMPT_FIELDS):
        messages, lacking = prompt_messages(value, fields), "prompt_without_answer"
    elif "text" in fields:
        return Turns(document=_document(value["text"]))
    elif "turns" in fields:
        messages, lacking = listed_prompts(value), "prompt_without_answer"
    else:
        raise RowError("no_messages")
    tools = objects(value.get("tools"), "bad_tools")
    return Turns(messages=_checked(messages, tools, lacking), tools=tools)


def _document(text: Any) -> str:
    if not isinstance(text, str):
        raise RowError("unsupported_content")
    if not text.strip():
        raise RowError("empty_document")
    return text


def _checked(messages: tuple[Message, ...], tools: str | None, lacking: Reason = "no_assistant") -> tuple[Message, ...]:
    roles = [m.role for m in messages if m.role != "system"]
    if roles[:1] == ["assistant"]:
        raise RowError("starts_with_assistant")
    if roles[:1] == ["tool"]:
        raise RowError("starts_with_tool")
    if "assistant" not in roles:
        if "user" in roles and any(m.content.strip() for m in messages if m.role == "user"):
            raise PromptOnly(lacking, Turns(messages=_to_be_answered(messages), tools=tools))
        raise RowError(lacking)
    for message in messages:
        if message.role == "assistant" and not message.tool_calls and not message.content.strip():
            raise RowError("empty_assistant")
    return messages


def _to_be_answered(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    answer = Message(role="assistant", content="")
    return tuple(turn for message in messages for turn in ((message, answer) if message.role == "user" else (message,)))


def _digest(content: Any) -> str:
    return hashlib.sha256(to_json(content)).hexdigest()
