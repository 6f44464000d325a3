"""The answers of one target under one set of settings, as the warehouse keeps them: by the text of their prompt."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dflash_pipeline.contracts.results import FAILURES, Reply
from dflash_pipeline.ingest.chat import ChatRenderer
from dflash_pipeline.model.answers import AnswerSettings
from dflash_pipeline.model.target_files import target_fingerprint
from dflash_pipeline.recipe import Recipe
from dflash_pipeline.stages.target_renderer import target_renderer
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.warehouse import Warehouse


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerCache:
    """What came of prompts, and how prompts are rendered."""

    warehouse: Warehouse
    renderer: ChatRenderer
    target: str
    settings: AnswerSettings

    def find(self, prompts: Sequence[str], *, with_failures: bool) -> dict[str, Reply]:
        """What is known, by prompt. Without failures, a prompt that has none but a failure is unknown."""
        prompt_of = {_key(prompt): prompt for prompt in prompts}
        keys, settings = list(prompt_of), self.settings.fingerprint
        answers = self.warehouse.find_answers(self.target, settings, keys)
        known = {prompt_of[key]: Reply(text=text, complete=complete) for key, (text, complete) in answers.items()}
        if len(known) < len(prompt_of):
            reasons = self.warehouse.find_unanswered(self.target, settings, keys)
            left = {prompt_of[key]: r for key, r in reasons.items() if with_failures or r not in FAILURES}
            known = {prompt: Reply(reason=reason) for prompt, reason in left.items()} | known
        return known

    def save(self, replies: Mapping[str, Reply]) -> None:
        """All of them or, if the process is killed, none."""
        self.warehouse.save_answers(
            self.target,
            self.settings.fingerprint,
            [(_key(prompt), r.text, r.complete) for prompt, r in replies.items() if r.reason is None],
            [(_key(prompt), r.reason) for prompt, r in replies.items() if r.reason is not None],
        )


def open_cache(recipe: Recipe, storage: Storage) -> AnswerCache:
    responses, endpoint = recipe.responses, recipe.responses.endpoint
    chat = endpoint is not None and endpoint.api == "chat"
    return AnswerCache(
        warehouse=Warehouse(storage.warehouse),
        renderer=target_renderer(recipe.target),
        target=target_fingerprint(recipe.target.path),
        settings=AnswerSettings(
            max_new_tokens=responses.max_new_tokens,
            batch_size=responses.batch_size,
            temperature=responses.temperature,
            top_p=responses.top_p,
            top_k=responses.top_k,
            seed=responses.seed,
            served=None if endpoint is None else f"{endpoint.api} {endpoint.model}",
            # What our rendering says of it, the server's need not: it is told apart.
            served_thinking=recipe.target.enable_thinking if chat else None,
        ),
    )


def _key(prompt: str) -> str:
    return hashlib.sha256(prompt.encode()).hexdigest()
