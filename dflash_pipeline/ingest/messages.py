"""One turn of a chat, as data sets write it, to a message. Text is kept character for character."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dflash_pipeline.contracts.conversation import Message, Reason, Role
from dflash_pipeline.ingest.rows import RowError, decode_value

_CHAT_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_SHAREGPT_ROLES: dict[str, Role] = {
    **_CHAT_ROLES,
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "observation": "tool",
    "tool_response": "tool",
    "function_response": "tool",
}
_CALLERS = ("function_call", "tool_call")
"""In the place of a role: an assistant turn that is one or more calls."""
_TEXT_PARTS = ("text", "input_text", "output_text")
_THOUGHT_PARTS = ("reasoning", "thinking")
_CALL_PARTS = ("tool_call", "function_call")
_THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking")


def read_message(turn: Any, *, sharegpt: bool) -> Message:
    """The message, or a `RowError`. `sharegpt`: the list is one whose roles have many names."""
    if not isinstance(turn, dict):
        raise RowError("bad_message")
    by_value = "from" in turn and "role" not in turn
    named = turn.get("from" if by_value else "role")
    content = turn.get("value" if by_value else "content")
    if not isinstance(named, str):
        raise RowError("bad_role")
    if (sharegpt or by_value) and named in _CALLERS:
        return Message(role="assistant", content="", tool_calls=_compact(_calls(content)))
    role = (_SHAREGPT_ROLES if sharegpt or by_value else _CHAT_ROLES).get(named)
    if role is None:
        raise RowError("bad_role")
    if len(turn) == 2 and isinstance(content, str):
        # A name and a text: what most turns are, and there is no room in them for anything else.
        return Message(role=role, content=content)
    if role != "assistant":
        return Message(role=role, content=plain_text(content))
    return _assistant(turn, content)


def plain_text(content: Any) -> str:
    """Text, or a list of text parts, joined; what is not text has no place in a drafter's corpus."""
    if content is None:
        raise RowError("missing_content")
    if isinstance(content, str):
        return content
    return "".join(_part_text(part, _TEXT_PARTS) for part in _parts(content))


def objects(listed: Any, reason: Reason) -> str | None:
    """A list of objects, or the JSON text of one, as compact JSON, its keys in their order. None when there is none.

    The order matters: a template may print the keys.
    """
    if isinstance(listed, str) and listed.strip():
        listed = decoded(listed, reason)
    if listed is None or listed == [] or listed == "":
        return None
    if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
        raise RowError(reason)
    return _compact(listed)


def decoded(text: str, reason: Reason) -> Any:
    """A field that holds JSON as text."""
    try:
        return decode_value(text.encode())
    except RowError:
        raise RowError(reason) from None


def _assistant(turn: Mapping[str, Any], content: Any) -> Message:
    thought, text, calls = _told_apart(content) if isinstance(content, list) else (None, content, [])
    tool_calls = objects(turn.get("tool_calls"), "bad_tool_calls")
    if tool_calls is None and turn.get("function_call"):
        calls = [*calls, *_calls(turn["function_call"])]
    given = next((turn[name] for name in _THOUGHT_FIELDS if turn.get(name) is not None), None)
    if given is not None and (not isinstance(given, str) or thought is not None):
        raise RowError("unsupported_content")
    if calls and tool_calls is not None:
        raise RowError("bad_tool_calls")
    return Message(
        role="assistant",
        # OpenAI's form of a turn that only calls tools has no text.
        content="" if text is None else plain_text(text),
        reasoning=given if thought is None else thought,
        tool_calls=_compact(calls) if calls else tool_calls,
    )


def _told_apart(content: Sequence[Any]) -> tuple[str | None, str, list[dict[str, Any]]]:
    """Thought, text and calls of an assistant's parts; a message can tell them in no other order than this one."""
    thoughts: list[str] = []
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    for part in _parts(content):
        kind = str(part.get("type"))
        if kind in _THOUGHT_PARTS and not texts and not calls:
            thoughts.append(_part_text(part, _THOUGHT_PARTS))
        elif kind in _CALL_PARTS:
            calls.extend(_calls(next((part[name] for name in ("value", kind) if name in part), None)))
        elif not calls:
            texts.append(_part_text(part, _TEXT_PARTS))
        else:
            raise RowError("unsupported_content")
    return "".join(thoughts) if thoughts else None, "".join(texts), calls


def _parts(content: Any) -> list[dict[str, Any]]:
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise RowError("unsupported_content")
    return content


def _part_text(part: Mapping[str, Any], kinds: Sequence[str]) -> str:
    kind = part.get("type")
    names = ("text", "value", str(kind)) if kind in kinds else ()
    found = [part[name] for name in dict.fromkeys(names) if part.get(name) is not None]
    if len(found) != 1 or not isinstance(found[0], str):
        raise RowError("unsupported_content")
    return found[0]


def _calls(value: Any) -> list[dict[str, Any]]:
    """Calls that came as an object, a list or the JSON text of either, in OpenAI's form."""
    if isinstance(value, str):
        value = decoded(value, "bad_tool_calls")
    calls = value if isinstance(value, list) else [value]
    if not calls or not all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls):
        raise RowError("bad_tool_calls")
    return [{"type": "function", "function": call} for call in calls]


def _compact(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError:
        raise RowError("non_finite_number") from None
