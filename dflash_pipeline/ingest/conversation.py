"""One JSON object to the turns of a conversation, or the reason why not. Text is kept character for character."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dflash_pipeline.contracts.conversation import Message, Reason, Role
from dflash_pipeline.ingest.rows import RowError

_ROLES: dict[str, Role] = {"system": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_SHAREGPT_ROLES: dict[str, Role] = {**_ROLES, "human": "user", "gpt": "assistant", "observation": "tool"}
_MAPPED: tuple[Role, ...] = ("system", "user", "assistant")


@dataclass(frozen=True, kw_only=True, slots=True)
class Turns:
    """What a row says, before it has a place in the corpus."""

    messages: tuple[Message, ...]
    tools: str | None = None

    @property
    def digest(self) -> str:
        """SHA-256 of the text: equal digests, equal conversations."""
        turns = [[m.role, m.content, m.reasoning, m.tool_calls] for m in self.messages]
        return hashlib.sha256(_compact([turns, self.tools]).encode()).hexdigest()

    @property
    def first_user_text(self) -> str:
        return next(m.content for m in self.messages if m.role == "user")


def row_id(value: Mapping[str, Any]) -> str | None:
    """The id as text: a whole number keeps its digits, a string every character. None when missing, null or empty."""
    given = value.get("id")
    if given is None or given == "":
        return None
    if isinstance(given, bool) or not isinstance(given, str | int):
        raise RowError("bad_id")
    return str(given)


def derived_id(digest: str) -> str:
    """An id for a row that has none, from its text: the same on every run, whatever else is in the files."""
    return f"sha256-{digest[:24]}"


def read_turns(value: Mapping[str, Any], mapping: Mapping[str, str]) -> Turns:
    """The conversation of a row: by `mapping` (role to field) if there is one, else `messages` or `conversations`."""
    if mapping:
        return Turns(messages=_checked(_mapped(value, mapping)))
    chat = value.get("messages") is not None
    listed = value.get("messages") if chat else value.get("conversations")
    if not isinstance(listed, list) or not listed:
        raise RowError("no_messages")
    messages = tuple(_message(turn, _ROLES if chat else _SHAREGPT_ROLES) for turn in listed)
    return Turns(messages=_checked(messages), tools=_objects(value.get("tools"), "bad_tools"))


def _mapped(value: Mapping[str, Any], mapping: Mapping[str, str]) -> tuple[Message, ...]:
    messages = []
    for role in _MAPPED:
        content = value.get(mapping[role]) if role in mapping else None
        if content is None or (role == "system" and content == ""):
            if role != "system":
                raise RowError("missing_field")
            continue
        messages.append(Message(role=role, content=_text(content)))
    return tuple(messages)


def _message(turn: Any, roles: Mapping[str, Role]) -> Message:
    if not isinstance(turn, dict):
        raise RowError("bad_message")
    by_value = "from" in turn and "role" not in turn
    named = turn.get("from" if by_value else "role")
    role = roles.get(named) if isinstance(named, str) else None
    if role is None:
        raise RowError("bad_role")
    content = turn.get("value" if by_value else "content")
    if role != "assistant":
        return Message(role=role, content=_text(content))
    tool_calls = _objects(turn.get("tool_calls"), "bad_tool_calls")
    reasoning = _reasoning(turn)
    if content is None:  # OpenAI's form of a turn that only calls tools
        content = ""
    return Message(role=role, content=_text(content), reasoning=reasoning, tool_calls=tool_calls)


def _text(content: Any) -> str:
    """Text, or a list of text parts, joined; what is not text has no place in a drafter's corpus."""
    if content is None:
        raise RowError("missing_content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RowError("unsupported_content")
    parts = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in content]
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) != len(parts):
        raise RowError("unsupported_content")
    return "".join(texts)


def _reasoning(turn: Mapping[str, Any]) -> str | None:
    given = turn.get("reasoning_content")
    if given is None:
        given = turn.get("reasoning")
    if given is not None and not isinstance(given, str):
        raise RowError("unsupported_content")
    return given


def _objects(listed: Any, reason: Reason) -> str | None:
    """A list of objects as compact JSON, keys in their order (a template may print them); None when there is none."""
    if listed is None or listed == []:
        return None
    if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
        raise RowError(reason)
    return _compact(listed)


def _checked(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    roles = [m.role for m in messages if m.role != "system"]
    if roles[:1] == ["assistant"]:
        raise RowError("starts_with_assistant")
    if roles[:1] == ["tool"]:
        raise RowError("starts_with_tool")
    if "assistant" not in roles:
        raise RowError("no_assistant")
    for message in messages:
        if message.role == "assistant" and not message.tool_calls and not message.content.strip():
            raise RowError("empty_assistant")
    return messages


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
