"""What an exchange means: an answer, a reason why there is none, another try, or the end of all asking."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dflash_pipeline.answering.exchange import Exchange
from dflash_pipeline.answering.settings import ServerSettings
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.results import NoAnswer, Reply

_BUSY = (408, 409, 425, 429)
_EXCERPT = 160


@dataclass(frozen=True, kw_only=True, slots=True)
class Answered:
    """A reply that no further try would change."""

    reply: Reply
    num_prompt_tokens: int | None = None
    num_answer_tokens: int | None = None
    """As the server counts them, if it says."""
    said: str = ""
    """The server's words, when it took the request for wrong."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TryAgain:
    """Nothing that could be used; `reason` is what stays if no try brings more."""

    reason: NoAnswer
    said: str
    after_seconds: float | None = None


def read_exchange(exchange: Exchange, server: ServerSettings) -> Answered | TryAgain:
    """Raises `Refused` for what holds for every prompt: a wrong key, an unknown model or route, a redirect."""
    status = exchange.status
    if status is None:
        return TryAgain(reason="no_reply", said=exchange.fault)
    said = f"HTTP {status}{_excerpt(exchange.body, server)}"
    if status in _BUSY or status >= 500:
        return TryAgain(reason="no_reply", said=said, after_seconds=exchange.retry_after_seconds)
    if status in (401, 403):
        raise Refused(said, where=server.url, fix="let responses.endpoint.api_key_env name a variable with a valid key")
    if status in (404, 405) or 300 <= status < 400:
        raise Refused(
            said,
            where=f"{server.url} ({server.api})",
            fix="give the address that ends in /v1, and the model's name there; redirects are not followed",
        )
    if status != 200:
        return Answered(reply=Reply(reason="rejected"), said=said)
    found = _choice(exchange.body, server)
    return found or TryAgain(reason="malformed", said=f"no completion{_excerpt(exchange.body, server)}")


def _choice(body: bytes, server: ServerSettings) -> Answered | None:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    choices = document.get("choices") if isinstance(document, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None
    if choice is None:
        return None
    reply = _reply(choice, chat=server.api == "chat")
    if reply is None:
        return None
    usage = document.get("usage")
    return Answered(
        reply=reply,
        num_prompt_tokens=_counted(usage, "prompt_tokens"),
        num_answer_tokens=_counted(usage, "completion_tokens"),
    )


def _counted(usage: Any, what: str) -> int | None:
    counted = usage.get(what) if isinstance(usage, dict) else None
    return counted if isinstance(counted, int) else None


def _reply(choice: Mapping[str, Any], *, chat: bool) -> Reply | None:
    """None for what is no answer of this kind: `abort`, calls of tools, text that is none."""
    ended = choice.get("finish_reason")
    if ended == "content_filter":
        return Reply(reason="content_filter")
    message = choice.get("message") if chat else choice
    if not isinstance(message, Mapping) or ended not in ("stop", "length"):
        return None
    if chat and message.get("refusal"):
        return Reply(reason="refused")
    text = _chat_text(message, complete=ended == "stop") if chat else message.get("text")
    if not isinstance(text, str) or _no_text(text):
        return None
    if not text.strip():
        return Reply(reason="empty")
    # A limit in the middle of a character leaves bytes that decode to replacement characters.
    return Reply(text=text, complete=True) if ended == "stop" else Reply(text=text.rstrip("\ufffd"), complete=False)


def _chat_text(message: Mapping[str, Any], *, complete: bool) -> str | None:
    """The answer as the target wrote it: a server may have put its thought into a field of its own."""
    content = message.get("content")
    thought = message.get("reasoning_content") or message.get("reasoning")
    if not isinstance(thought, str) or not thought.strip():
        return content if isinstance(content, str) else None
    opened = f"<think>\n{thought.strip(chr(10))}"
    if not content and not complete:
        return opened
    return f"{opened}\n</think>\n\n{content.lstrip(chr(10))}" if isinstance(content, str) else None


def _no_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        # Half of a pair of surrogates, which JSON can spell and no file holds.
        return True
    return False


def _excerpt(body: bytes, server: ServerSettings) -> str:
    words = server.without_key(" ".join(body[: 4 * 2**10].decode("utf-8", "replace").split()))
    return f": {words[:_EXCERPT]}" if words else ""
