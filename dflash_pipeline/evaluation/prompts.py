"""Prompts to decode, from JSON lines in the forms that benchmark files come in."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import NDArray

from dflash_pipeline.contracts.conversation import Message, Role
from dflash_pipeline.contracts.errors import Refused

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_FORMS = "a row needs messages (role, content), question, prompt or turns"


def read_prompts(
    path: Path, *, render: Callable[[Sequence[Message]], str], tokenizer: PreTrainedTokenizerBase, limit: int
) -> tuple[NDArray[np.int64], ...]:
    """The first `limit` prompts as token ids. A row that is none of the known forms is refused by its line."""
    prompts: list[NDArray[np.int64]] = []
    for number, line in enumerate(_lines(path), start=1):
        if line.strip() and len(prompts) < limit:
            messages = _messages(line, where=f"{path}:{number}")
            ids = tokenizer(render(messages), add_special_tokens=False)["input_ids"]
            prompts.append(np.asarray(ids, dtype=np.int64))
    if not prompts:
        raise Refused("there is no prompt", where=str(path), fix=f"give JSON lines; {_FORMS}")
    return tuple(prompts)


def _lines(path: Path) -> Iterator[str]:
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise Refused(f"not readable: {error}", where=str(path), fix="give a JSONL file of prompts in UTF-8") from None
    for number, line in enumerate(lines, start=1):
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise Refused(
                f"no UTF-8 text: byte {error.object[error.start]:#04x} at column {error.start + 1}",
                where=f"{path}:{number}",
                fix="save the file in UTF-8",
            ) from None


def _messages(line: str, *, where: str) -> tuple[Message, ...]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Refused(f"not JSON: {error}", where=where, fix=_FORMS) from None
    if not isinstance(row, dict):
        raise Refused("not an object", where=where, fix=_FORMS)
    if isinstance(row.get("messages"), list):
        return _before_the_answer([_message(item, where=where) for item in row["messages"]], where=where)
    # Later turns of a dialogue would need the answers to earlier ones: the first alone is a prompt.
    turns = row.get("turns")
    first = turns[0] if isinstance(turns, list) and turns else None
    text = row.get("question", row.get("prompt", first))
    if not isinstance(text, str) or not text:
        raise Refused("no prompt in this row", where=where, fix=_FORMS)
    return (Message(role="user", content=text),)


def _message(item: Any, *, where: str) -> Message:
    if not isinstance(item, dict) or item.get("role") not in get_args(Role) or not isinstance(item.get("content"), str):
        raise Refused(f"not a message: {item!r:.80}", where=where, fix=_FORMS)
    return Message(role=item["role"], content=item["content"])


def _before_the_answer(messages: list[Message], *, where: str) -> tuple[Message, ...]:
    while messages and messages[-1].role == "assistant":
        messages.pop()
    if not messages:
        raise Refused("messages hold no prompt", where=where, fix="begin with a user turn")
    return tuple(messages)
