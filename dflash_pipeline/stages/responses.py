"""The target's own answers in place of those of the files: what a drafter must learn to predict.

Answers are cached in the warehouse by (target, settings, prompt text) and saved batch by batch, so a stage that was
killed goes on where it stopped. Which answers a conversation gets is then a pure reading of that cache.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from tqdm import tqdm

from dflash_pipeline.contracts.conversation import Conversation, Ingestion
from dflash_pipeline.contracts.errors import Failed, Refused
from dflash_pipeline.contracts.fingerprint import fingerprint
from dflash_pipeline.contracts.results import AnswerSet, Reply
from dflash_pipeline.model.answers import answer_prompts
from dflash_pipeline.model.loading import load_causal_lm
from dflash_pipeline.recipe import Recipe
from dflash_pipeline.stages.answer_cache import AnswerCache, open_cache
from dflash_pipeline.stages.dialogue import Answers, Dialogue, Question, answer_conversations
from dflash_pipeline.stages.endpoint_answers import EndpointSpeaker
from dflash_pipeline.stages.made import Made
from dflash_pipeline.stages.progress import Tell
from dflash_pipeline.stages.terminal import show_bars
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.warehouse import Warehouse

SOURCE_ANSWERS = "source"
logger = logging.getLogger(__name__)


def make_responses(
    recipe: Recipe, storage: Storage, ingestion: Ingestion, *, tell: Tell = logger.debug
) -> Made[AnswerSet]:
    """Answer every assistant turn of every conversation with the target, turn after turn.

    `Failed` when more prompts than the recipe allows have no answer because the server gave none; what came is kept.
    """
    if not recipe.responses.enabled:
        record = AnswerSet(
            fingerprint=SOURCE_ANSWERS, ingestion=ingestion.fingerprint, num_answers=0, num_cut=0, num_empty=0
        )
        return Made(record=record, reused=True)
    cache = open_cache(recipe, storage)
    speaker: Speaker | EndpointSpeaker
    if recipe.responses.endpoint is None:
        speaker = Speaker(recipe, cache)
    else:
        speaker = EndpointSpeaker(recipe, cache, recipe.responses.endpoint, tell)

    def replies(questions: Sequence[Question]) -> dict[str, Reply]:
        known = cache.find([question.prompt for question in questions], with_failures=False)
        missing = [question for question in questions if question.prompt not in known]
        return known | (speaker.speak(missing) if missing else {})

    conversations = _to_be_answered(cache.warehouse, ingestion)
    answers = answer_conversations(conversations, render=_rendering(cache), replies=replies)
    _refuse_failures(recipe, answers, speaker.said)
    said = [m for c in answers.conversations for m in c.messages if m.role == "assistant"]
    record = AnswerSet(
        fingerprint=_identity(cache, answers),
        ingestion=ingestion.fingerprint,
        num_answers=len(said),
        num_cut=sum(not m.complete for m in said),
        num_empty=answers.count("empty"),
        left_out=answers.left_out,
    )
    return Made(record=record, reused=not speaker.spoke)


def conversations_with_answers(
    recipe: Recipe, storage: Storage, ingestion: Ingestion, answers: AnswerSet
) -> list[Conversation]:
    """The conversations with the answers that `answers` names, in canonical order. Nothing is generated here."""
    if answers.fingerprint == SOURCE_ANSWERS:
        return Warehouse(storage.warehouse).conversations(ingestion.fingerprint)
    cache = open_cache(recipe, storage)

    def replies(questions: Sequence[Question]) -> dict[str, Reply]:
        known = cache.find([question.prompt for question in questions], with_failures=True)
        if missing := len(questions) - len(known):
            raise Refused(
                f"{missing} answers are not in the warehouse",
                where="target_responses",
                fix="materialise target_responses",
            )
        return known

    found = answer_conversations(_to_be_answered(cache.warehouse, ingestion), render=_rendering(cache), replies=replies)
    if (identity := _identity(cache, found)) != answers.fingerprint:
        raise Refused(
            f"the answers in the warehouse are {identity}, not {answers.fingerprint}: others came since, or settings "
            "changed",
            where="target_responses",
            fix="materialise target_responses",
        )
    return list(found.conversations)


def _identity(cache: AnswerCache, answers: Answers) -> str:
    # Named only where they do something: answers that were there before keep their name.
    opened = {"opened": True} if answers.opened else {}
    failed = {"failed": answers.failed} if answers.failed else {}
    cut = {"cut_in_thought": True} if answers.count("cut_in_thought") else {}
    return fingerprint(
        target=cache.target,
        settings=cache.settings.fingerprint,
        template=cache.renderer.template_fingerprint,
        **opened,
        **failed,
        **cut,
    )


def _rendering(cache: AnswerCache) -> Callable[[Dialogue], str]:
    def render(dialogue: Dialogue) -> str:
        return cache.renderer.prompt(dialogue.said, tools=dialogue.conversation.tools)

    return render


def _refuse_failures(recipe: Recipe, answers: Answers, said: str) -> None:
    endpoint, num_failed = recipe.responses.endpoint, len(answers.failed)
    if endpoint is not None and num_failed > endpoint.max_failed * answers.num_prompts:
        raise Failed(
            f"{num_failed:,} of {answers.num_prompts:,} prompts have no answer ({said})",
            where=f"responses.endpoint {endpoint.url}",
            fix="run again: answers that came are kept, and only the others are asked for; or raise "
            "responses.endpoint.max_failed",
        )


def _to_be_answered(warehouse: Warehouse, ingestion: Ingestion) -> list[Conversation]:
    """The conversations, and the prompts that came without an answer, in canonical order."""
    prompts = [prompt for batch in warehouse.stream_prompts(ingestion.fingerprint) for prompt in batch]
    conversations = warehouse.conversations(ingestion.fingerprint) + prompts
    return sorted(conversations, key=lambda c: (c.split == "validation", c.conversation_id))


class Speaker:
    """Lets the target speak in this process; loads it only when there is something to say."""

    said = ""
    """Why prompts failed: none does here."""

    def __init__(self, recipe: Recipe, cache: AnswerCache) -> None:
        self.recipe = recipe
        self.cache = cache
        self.spoke = False

    def speak(self, questions: Sequence[Question]) -> dict[str, Reply]:
        """Answers to all prompts, saved batch by batch.

        Batches are cut in the order given, so that a stage that is taken up again cuts the rest as before.
        """
        self.spoke = True
        model = load_causal_lm(self.recipe.target.path, device=self.recipe.training.device)
        tokenizer, settings = self.cache.renderer.tokenizer, self.cache.settings
        answers: dict[str, Reply] = {}
        with tqdm(total=len(questions), desc="answers by the target", unit="prompt", disable=not show_bars()) as bar:
            for start in range(0, len(questions), settings.batch_size):
                batch = [question.prompt for question in questions[start : start + settings.batch_size]]
                spoken = answer_prompts(model, tokenizer, batch, settings)
                fresh = {p: Reply(text=a.text, complete=a.complete) for p, a in zip(batch, spoken, strict=True)}
                self.cache.save(fresh)
                answers |= fresh
                bar.update(len(batch))
        return answers
