"""The shapes in which rows hold a conversation, told by their field names. What could be read two ways is refused."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from dflash_pipeline.contracts.conversation import Message, Role
from dflash_pipeline.ingest.messages import decoded, plain_text, read_message
from dflash_pipeline.ingest.rows import RowError

CHAT_FIELDS = ("messages", "conversations", "chat", "conversation", "traj", "trajectory")
"""Lists of turns. `messages` names roles as OpenAI does; in the others they have many names."""
PROMPT_FIELDS = frozenset({"instruction", "prompt", "question", "query", "input"})
_ANSWERS = frozenset({"completion", "response", "answer", "output", "canonical_solution"})
_BESIDE = frozenset({"input", "context"})
"""What belongs below an `instruction`; alone, `input` is the prompt itself."""
_MAPPED: tuple[Role, ...] = ("system", "user", "assistant")


def unfold(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rows inside a row: one for each of its `instances` (input and output below one instruction), else itself.

    Several instances of a row with an id get its id with `/0`, `/1`, … behind it.
    """
    instances = row.get("instances")
    if instances is None or not isinstance(row.get("instruction"), str):
        return [row]
    if not isinstance(instances, list) or not instances or not all(isinstance(one, dict) for one in instances):
        raise RowError("bad_instances")
    outer = {name: value for name, value in row.items() if name != "instances"}
    rows: list[Mapping[str, Any]] = [{**outer, **instance} for instance in instances]
    if len(rows) == 1 or not isinstance(row.get("id"), str | int) or row["id"] == "":
        return rows
    return [{**one, "id": f"{row['id']}/{number}"} for number, one in enumerate(rows)]


def chat_messages(row: Mapping[str, Any]) -> tuple[Message, ...]:
    """The turns of the row's list of turns, below its `system` field if it has one."""
    field = next(name for name in CHAT_FIELDS if row.get(name) is not None)
    listed = row[field]
    if isinstance(listed, str):
        listed = decoded(listed, "no_messages")
    if not isinstance(listed, list) or not listed:
        raise RowError("no_messages")
    turns = tuple(read_message(turn, sharegpt=field != "messages") for turn in listed)
    system = _system(row)
    return turns if turns[:1] == system else system + turns


def mapped_messages(row: Mapping[str, Any], mapping: Mapping[str, str]) -> tuple[Message, ...]:
    """A turn for each role that the mapping gives a field."""
    messages = []
    for role in _MAPPED:
        content = row.get(mapping[role]) if role in mapping else None
        if content is None or (role == "system" and content == ""):
            if role != "system":
                raise RowError("missing_field")
            continue
        messages.append(Message(role=role, content=plain_text(content)))
    return tuple(messages)


def prompt_messages(row: Mapping[str, Any], fields: Set[str]) -> tuple[Message, ...]:
    """Prompt and answer that lie in fields of their own, `system` and `history` before them; without an answer, to it.

    An instruction and its `input` make one turn, a line each, as LLaMA-Factory joins them. `fields` are those of the
    row that are not null.
    """
    prompts = fields & PROMPT_FIELDS
    if len(prompts) > 1:
        prompts -= {"input"}
    beside = {name for name in (fields & _BESIDE) - prompts if row[name] != ""}
    answers = fields & _ANSWERS
    crowded = len(prompts) > 1 or len(answers) > 1 or len(beside) > 1 or "text" in fields
    if crowded or (beside and prompts != {"instruction"}):
        raise RowError("ambiguous_fields")
    asked = _asked(*(row[name] for name in (*prompts, *beside)))
    answered = _answered(row[next(iter(answers))]) if answers else ()
    return (*_system(row), *_history(row.get("history")), *asked, *answered)


def listed_prompts(row: Mapping[str, Any]) -> tuple[Message, ...]:
    """User turns alone, as benchmarks list them under `turns`."""
    turns = row["turns"]
    if not isinstance(turns, list) or not turns:
        raise RowError("no_messages")
    return (*_system(row), *(Message(role="user", content=plain_text(turn)) for turn in turns))


def _asked(prompt: Any, *beside: Any) -> tuple[Message, ...]:
    if _is_chat(prompt) and not beside:
        return tuple(read_message(turn, sharegpt=False) for turn in prompt)
    return (Message(role="user", content="\n".join([plain_text(text) for text in (prompt, *beside)])),)


def _answered(answer: Any) -> tuple[Message, ...]:
    if _is_chat(answer):
        return tuple(read_message(turn, sharegpt=False) for turn in answer)
    return (Message(role="assistant", content=plain_text(answer)),)


def _is_chat(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(turn, dict) and "role" in turn for turn in value)


def _system(row: Mapping[str, Any]) -> tuple[Message, ...]:
    system = row.get("system")
    return () if system is None or system == "" else (Message(role="system", content=plain_text(system)),)


def _history(pairs: Any) -> tuple[Message, ...]:
    if isinstance(pairs, str) and pairs:
        pairs = decoded(pairs, "bad_message")
    if not pairs:
        return ()
    if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise RowError("bad_message")
    roles: tuple[Role, Role] = ("user", "assistant")
    return tuple(
        Message(role=role, content=plain_text(text)) for pair in pairs for role, text in zip(roles, pair, strict=True)
    )
