"""One prompt and its tries; and whether the server is the right one at all."""

from __future__ import annotations

import json
import logging
import random
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dflash_pipeline.answering.exchange import Connections
from dflash_pipeline.answering.replies import TryAgain, read_exchange
from dflash_pipeline.answering.requests import Prompt, Sampling, chat_body, completion_body
from dflash_pipeline.answering.settings import ServerSettings
from dflash_pipeline.contracts.errors import Failed, Refused
from dflash_pipeline.contracts.results import Reply

logger = logging.getLogger(__name__)
_PATHS = {"completions": "/completions", "chat": "/chat/completions"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What came of a prompt."""

    reply: Reply
    num_tries: int
    said: str = ""
    """Why there is no answer, in the server's words or ours."""


class Asker:
    """Asks one server, from any thread. `stop` ends pauses early, and no try follows."""

    def __init__(
        self, server: ServerSettings, sampling: Sampling, *, thinking: bool | None, stop: threading.Event
    ) -> None:
        self._server, self._sampling, self._thinking, self._stop = server, sampling, thinking, stop
        self._connections = Connections(server)
        self._chance = random.Random()
        self._warned: set[str] = set()

    def check_model(self) -> None:
        """Ask for the list of models, once: `Failed` where nobody answers, `Refused` where the target is not on it."""
        exchange = self._connections.get("/models")
        found = read_exchange(exchange, self._server)
        if exchange.status != 200 and isinstance(found, TryAgain):
            raise Failed(
                found.said,
                where=self._server.url,
                fix="start the server and wait until it is ready; answers that were saved are not asked for again",
            )
        names = _model_names(exchange.body)
        if self._server.model not in names:
            raise Refused(
                f"it serves {', '.join(map(repr, sorted(names)[:8])) or 'no model that it lists'}, "
                f"not {self._server.model!r}",
                where=self._server.url,
                fix="set responses.endpoint.model to the name under which it serves the target",
            )

    def ask(self, prompt: Prompt) -> Asked:
        """The answer, or the reason that stays when the last try brought none."""
        patience, body, tries = self._server.patience, self._body(prompt), 0
        while True:
            tries += 1
            found = read_exchange(self._connections.post(_PATHS[self._server.api], body), self._server)
            if not isinstance(found, TryAgain):
                self._compare(prompt, found.num_prompt_tokens)
                self._check_limit(found.num_answer_tokens)
                return Asked(reply=found.reply, num_tries=tries, said=found.said)
            given_up = Asked(reply=Reply(reason=found.reason), num_tries=tries, said=found.said)
            if tries > patience.retries:
                return given_up
            if self._stop.wait(patience.pause(tries, asked_for=found.after_seconds, chance=self._chance)):
                return given_up

    def _body(self, prompt: Prompt) -> Mapping[str, Any]:
        if self._server.api == "completions":
            return completion_body(prompt, self._server.model, self._sampling)
        return chat_body(prompt, self._server.model, self._sampling, thinking=self._thinking)

    def _compare(self, prompt: Prompt, counted: int | None) -> None:
        if counted is None or counted == len(prompt.token_ids):
            return
        what = f"the server counts {counted} tokens in a prompt of {len(prompt.token_ids)}"
        if self._server.api == "completions":
            raise Refused(
                what, where=self._server.url, fix="serve the recipe's target there: this model has another tokenizer"
            )
        self._warn("template", f"{what}: its chat template prints otherwise than the target's own")

    def _check_limit(self, counted: int | None) -> None:
        """Such an answer is the target's own all the same, so it is kept."""
        limit = self._sampling.max_new_tokens
        if counted is not None and counted > limit:
            self._warn(
                "limit", f"the server does not keep to max_tokens: {counted} tokens where {limit} were asked for"
            )

    def _warn(self, kind: str, what: str) -> None:
        """Once a kind: a server that does so does it with every prompt."""
        if kind not in self._warned:
            self._warned.add(kind)
            logger.warning("%s", what)


def _model_names(body: bytes) -> set[str]:
    try:
        listed = json.loads(body)["data"]
        return {str(entry["id"]) for entry in listed}
    except (ValueError, RecursionError, LookupError, TypeError):
        return set()
