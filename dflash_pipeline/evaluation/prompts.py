"""Prompts to decode, from JSON lines in the forms that benchmark files come in, plain or packed with gzip.

GSM8K has `question`, HumanEval `prompt`, Spec-Bench and MT-Bench `turns` with a `category`, chats `messages`. A
prompt's source is its `category` or `source`, or else the name of the file. Of `turns` the first alone is decoded, and
of `messages` what comes before the last answer: later turns would need the target's answers to earlier ones.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import NDArray

from dflash_pipeline.contracts.conversation import Message, Role
from dflash_pipeline.contracts.errors import Refused

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_FORMS = "a row needs messages (role, content), question, prompt or turns"
_FIX = "give a JSONL file of prompts in UTF-8, as it is or packed with gzip"
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Prompt:
    """What is decoded after."""

    ids: NDArray[np.integer]
    """Tokens, as the target's template prints them."""
    source: str
    """Where it comes from: a category, or a file."""


def read_prompts(
    path: Path, *, render: Callable[[Sequence[Message]], str], tokenizer: PreTrainedTokenizerBase, limit: int
) -> tuple[Prompt, ...]:
    """The first `limit` prompts. A row that is none of the known forms is refused by its line."""
    prompts: list[Prompt] = []
    for number, line in enumerate(_lines(path), start=1):
        if len(prompts) == limit:
            break
        if line.strip():
            where = f"{path}:{number}"
            row = _row(line, where=where)
            ids = tokenizer(render(_messages(row, where=where)), add_special_tokens=False)["input_ids"]
            prompts.append(Prompt(ids=np.asarray(ids, dtype=np.int64), source=_source(row, path)))
    if not prompts:
        raise Refused("there is no prompt", where=str(path), fix=f"give JSON lines; {_FORMS}")
    return tuple(prompts)


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open("rb") as file:
            packed = file.read(len(_GZIP)) == _GZIP
        # Split at line feeds alone: a text may hold other separators of lines.
        with gzip.open(path) if packed else path.open("rb") as file:
            yield from _decoded(file, path)
    except (OSError, EOFError, zlib.error) as error:
        raise Refused(f"not readable: {error}", where=str(path), fix=_FIX) from None


def _decoded(file: Iterable[bytes], path: Path) -> Iterator[str]:
    for number, line in enumerate(file, start=1):
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise Refused(
                f"no UTF-8 text: byte {error.object[error.start]:#04x} at column {error.start + 1}",
                where=f"{path}:{number}",
                fix="save the file in UTF-8",
            ) from None


def _row(line: str, *, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Refused(f"not JSON: {error}", where=where, fix=_FORMS) from None
    if not isinstance(row, dict):
        raise Refused("not an object", where=where, fix=_FORMS)
    return row


def _source(row: dict[str, Any], path: Path) -> str:
    named = (row.get(key) for key in ("category", "source"))
    return next((name for name in named if isinstance(name, str) and name), path.name)


def _messages(row: dict[str, Any], *, where: str) -> tuple[Message, ...]:
    if isinstance(row.get("messages"), list):
        return _before_the_answer([_message(item, where=where) for item in row["messages"]], where=where)
    # Later turns of a dialogue would need the answers to earlier ones: the first alone is a prompt.
    turns = row.get("turns")
    first = turns[0] if isinstance(turns, list) and turns else None
    text = row.get("question", row.get("prompt", first))
    if not isinstance(text, str) or not text:
        raise Refused("no prompt in this row", where=where, fix=_FORMS)
    _refuse_surrogates(text, where=where)
    return (Message(role="user", content=text),)


def _refuse_surrogates(text: str, *, where: str) -> None:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise Refused("half of a character (a lone surrogate)", where=where, fix="save the text in UTF-8 anew")


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
