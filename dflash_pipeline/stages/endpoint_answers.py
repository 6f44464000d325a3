"""Lets a server with OpenAI's interface answer: many prompts at once, saved as they come."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing

from dflash_pipeline.answering.asking import Asked, Asker
from dflash_pipeline.answering.in_flight import in_flight
from dflash_pipeline.answering.requests import Prompt, Sampling
from dflash_pipeline.answering.settings import Patience, ServerSettings, key_from_environment
from dflash_pipeline.contracts.errors import Failed, Refused
from dflash_pipeline.contracts.results import FAILURES, Reply
from dflash_pipeline.recipe import Endpoint, Recipe
from dflash_pipeline.stages.answer_cache import AnswerCache
from dflash_pipeline.stages.dialogue import Question
from dflash_pipeline.stages.progress import Tell, followed

SECONDS_BETWEEN_SAVES = 5.0
LEAST_IN_A_ROW = 8
"""Prompts without any reply, one after the other, that make a server one that is gone; more where more run at once."""


class EndpointSpeaker:
    """Asks the recipe's server; looks whether it is there, and is the right one, when there is something to ask."""

    def __init__(self, recipe: Recipe, cache: AnswerCache, endpoint: Endpoint, tell: Tell) -> None:
        self._cache, self._endpoint, self._tell = cache, endpoint, tell
        self._thinking = recipe.target.enable_thinking
        self._failures: Counter[str] = Counter()
        self._in_a_row = 0
        self.spoke = False

    @property
    def said(self) -> str:
        """Why prompts failed: what was said most, and how often."""
        return "; ".join(f"{count:,} times {words}" for words, count in self._failures.most_common(3))

    def speak(self, questions: Sequence[Question]) -> dict[str, Reply]:
        """What came of all prompts, saved as they come. `Failed` when the server is not there, or is gone."""
        self.spoke = True
        if self._endpoint.api == "chat" and (num := sum(question.with_tools for question in questions)):
            raise Refused(
                f"{num:,} prompts of conversations with tools, whose calls come back apart from the answer's text",
                where="responses.endpoint.api chat",
                fix="set api to completions, which leaves the rendering to the target's own template",
            )
        stop = threading.Event()
        server = _server(self._endpoint)
        asker = Asker(server, _sampling(self._cache), thinking=self._thinking, stop=stop)
        asker.check_model()
        replies: dict[str, Reply] = {}
        unsaved: dict[str, Reply] = {}
        saved_at = time.monotonic()
        asking = in_flight(self._prompts(questions), asker.ask, concurrency=server.concurrency, stop=stop)
        try:
            with closing(asking):
                for prompt, asked in followed(asking, total=len(questions), what="answers", tell=self._tell):
                    replies[prompt.text] = unsaved[prompt.text] = asked.reply
                    self._note(asked)
                    now = time.monotonic()
                    if len(unsaved) >= self._cache.settings.batch_size or now - saved_at >= SECONDS_BETWEEN_SAVES:
                        fresh, unsaved, saved_at = unsaved, {}, now
                        self._cache.save(fresh)
        finally:
            # Whatever ends it: what came is not asked for again.
            if unsaved:
                self._cache.save(unsaved)
        return replies

    def _prompts(self, questions: Sequence[Question]) -> Iterator[Prompt]:
        renderer = self._cache.renderer
        for question in questions:
            ids = renderer.tokenizer(question.prompt, add_special_tokens=False, verbose=False)["input_ids"]
            messages = renderer.renderer.template.as_dicts(question.said)
            yield Prompt(text=question.prompt, token_ids=ids, messages=messages)

    def _note(self, asked: Asked) -> None:
        """Count failures; `Failed` once so many prompts in a row got no reply that the server must be gone."""
        reason = asked.reply.reason
        self._in_a_row = self._in_a_row + 1 if reason == "no_reply" else 0
        if reason in FAILURES:
            self._failures[asked.said] += 1
        if self._in_a_row >= max(LEAST_IN_A_ROW, 2 * self._endpoint.concurrency):
            raise Failed(
                f"{self._in_a_row} prompts in a row got no reply in {asked.num_tries} tries each; last, {asked.said}",
                where=f"responses.endpoint {self._endpoint.url}",
                fix="look after the server and run again: answers that came are kept, the others are asked for",
            )


def _server(endpoint: Endpoint) -> ServerSettings:
    return ServerSettings(
        url=endpoint.url,
        model=endpoint.model,
        api=endpoint.api,
        patience=Patience(
            timeout_seconds=endpoint.timeout_seconds,
            retries=endpoint.retries,
            first_pause_seconds=endpoint.first_pause_seconds,
            longest_pause_seconds=endpoint.longest_pause_seconds,
        ),
        concurrency=endpoint.concurrency,
        key=key_from_environment(endpoint.api_key_env),
    )


def _sampling(cache: AnswerCache) -> Sampling:
    settings = cache.settings
    return Sampling(
        max_new_tokens=settings.max_new_tokens,
        temperature=settings.temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
        seed=settings.seed,
    )
