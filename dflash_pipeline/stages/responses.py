"""The target's own answers in place of those of the files: what a drafter must learn to predict.

Answers are cached in the warehouse by (target, settings, prompt text) and saved batch by batch, so a stage that was
killed goes on where it stopped. Which answers a conversation gets is then a pure reading of that cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tqdm import tqdm

from dflash_pipeline.contracts.conversation import Conversation, Ingestion, Message
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.fingerprint import fingerprint
from dflash_pipeline.contracts.results import AnswerSet
from dflash_pipeline.ingest.chat import ChatRenderer
from dflash_pipeline.model.answers import AnswerSettings, answer_prompts
from dflash_pipeline.model.loading import load_causal_lm
from dflash_pipeline.model.target_files import target_fingerprint
from dflash_pipeline.recipe import Recipe
from dflash_pipeline.stages.made import Made
from dflash_pipeline.stages.terminal import show_bars
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.warehouse import Warehouse

SOURCE_ANSWERS = "source"

Answered = tuple[str, bool]
"""An answer's text, and whether it is complete: it ended by itself, not at the token limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialogue:
    """A conversation being answered: `said` ends where the target has to speak, unless nothing is `to_come`."""

    conversation: Conversation
    said: tuple[Message, ...]
    to_come: tuple[Message, ...]

    @classmethod
    def begin(cls, conversation: Conversation) -> Dialogue:
        return cls(conversation=conversation, said=(), to_come=conversation.messages)._up_to_next_answer()

    @property
    def finished(self) -> bool:
        return not self.to_come

    def answered(self, text: str, complete: bool) -> Dialogue:
        """The dialogue after this answer. One that was cut is its last: what would follow answers another text."""
        said = (*self.said, Message(role="assistant", content=text, complete=complete))
        to_come = self.to_come[1:] if complete else ()
        return replace(self, said=said, to_come=to_come)._up_to_next_answer()

    def _up_to_next_answer(self) -> Dialogue:
        turns = [i for i, message in enumerate(self.to_come) if message.role == "assistant"]
        if not turns:
            return replace(self, to_come=())
        return replace(self, said=(*self.said, *self.to_come[: turns[0]]), to_come=self.to_come[turns[0] :])


@dataclass(frozen=True, kw_only=True, slots=True)
class Answering:
    """The cache of one target and its settings, and how prompts are rendered for it."""

    warehouse: Warehouse
    renderer: ChatRenderer
    target: str
    settings: AnswerSettings

    @property
    def fingerprint(self) -> str:
        return fingerprint(
            target=self.target, settings=self.settings.fingerprint, template=self.renderer.template_fingerprint
        )

    def prompt(self, dialogue: Dialogue) -> str:
        return self.renderer.prompt(dialogue.said, tools=dialogue.conversation.tools)

    def find(self, prompts: Sequence[str]) -> dict[str, Answered]:
        """Known answers by prompt text."""
        prompt_of = {_key(prompt): prompt for prompt in prompts}
        found = self.warehouse.find_answers(self.target, self.settings.fingerprint, list(prompt_of))
        return {prompt_of[key]: answer for key, answer in found.items()}

    def save(self, answers: Mapping[str, Answered]) -> None:
        rows = [(_key(prompt), text, complete) for prompt, (text, complete) in answers.items()]
        self.warehouse.save_answers(self.target, self.settings.fingerprint, rows)


def open_answering(recipe: Recipe, storage: Storage) -> Answering:
    return Answering(
        warehouse=Warehouse(storage.warehouse),
        renderer=ChatRenderer(recipe.target.path, recipe.target.chat_template),
        target=target_fingerprint(recipe.target.path),
        settings=AnswerSettings(max_new_tokens=recipe.responses.max_new_tokens, batch_size=recipe.responses.batch_size),
    )


def make_responses(recipe: Recipe, storage: Storage, ingestion: Ingestion) -> Made[AnswerSet]:
    """Answer every assistant turn of every conversation with the target, greedily, turn after turn."""
    if not recipe.responses.enabled:
        record = AnswerSet(
            fingerprint=SOURCE_ANSWERS, ingestion=ingestion.fingerprint, num_answers=0, num_cut=0, num_empty=0
        )
        return Made(record=record, reused=True)
    answering = open_answering(recipe, storage)
    speaker = Speaker(recipe, answering)
    conversations = _to_be_answered(answering.warehouse, ingestion)
    answered, num_empty = answer_conversations(conversations, answering, speaker.speak)
    answers = [m for c in answered for m in c.messages if m.role == "assistant"]
    record = AnswerSet(
        fingerprint=answering.fingerprint,
        ingestion=ingestion.fingerprint,
        num_answers=len(answers),
        num_cut=sum(not m.complete for m in answers),
        num_empty=num_empty,
    )
    return Made(record=record, reused=not speaker.spoke)


def conversations_with_answers(
    recipe: Recipe, storage: Storage, ingestion: Ingestion, answers: AnswerSet
) -> list[Conversation]:
    """The conversations with the answers that `answers` names, in canonical order. Nothing is generated here."""
    if answers.fingerprint == SOURCE_ANSWERS:
        return Warehouse(storage.warehouse).conversations(ingestion.fingerprint)
    answering = open_answering(recipe, storage)
    conversations = _to_be_answered(answering.warehouse, ingestion)
    answered, _ = answer_conversations(conversations, answering, _refuse_missing)
    return answered


def _to_be_answered(warehouse: Warehouse, ingestion: Ingestion) -> list[Conversation]:
    """The conversations, and the prompts that came without an answer, in canonical order."""
    prompts = [prompt for batch in warehouse.stream_prompts(ingestion.fingerprint) for prompt in batch]
    conversations = warehouse.conversations(ingestion.fingerprint) + prompts
    return sorted(conversations, key=lambda c: (c.split == "validation", c.conversation_id))


def answer_conversations(
    conversations: Sequence[Conversation],
    answering: Answering,
    speak: Callable[[Sequence[str]], dict[str, Answered]],
) -> tuple[list[Conversation], int]:
    """Conversations with the target's answers, and how many were left out because an answer was empty.

    Round after round, prompts that the cache does not know are given to `speak` together.
    """
    dialogues: list[Dialogue | None] = [Dialogue.begin(c) for c in conversations]
    while prompts := {i: answering.prompt(d) for i, d in enumerate(dialogues) if d and not d.finished}:
        wanted = sorted(set(prompts.values()), key=lambda prompt: (len(prompt), prompt))
        known = answering.find(wanted)
        if missing := [prompt for prompt in wanted if prompt not in known]:
            known |= speak(missing)
        for i, prompt in prompts.items():
            text, complete = known[prompt]
            dialogue = dialogues[i]
            dialogues[i] = dialogue.answered(text, complete) if dialogue and text.strip() else None
    answered = [replace(d.conversation, messages=d.said) for d in dialogues if d]
    return answered, len(conversations) - len(answered)


class Speaker:
    """Lets the target speak; loads it only when there is something to say."""

    def __init__(self, recipe: Recipe, answering: Answering) -> None:
        self.recipe = recipe
        self.answering = answering
        self.spoke = False

    def speak(self, prompts: Sequence[str]) -> dict[str, Answered]:
        """Answers to all prompts, saved batch by batch.

        Batches are cut in the order given, so that a stage that is taken up again cuts the rest as before.
        """
        self.spoke = True
        model = load_causal_lm(self.recipe.target.path, device=self.recipe.training.device)
        tokenizer = self.answering.renderer.tokenizer
        size = self.answering.settings.batch_size
        answers: dict[str, Answered] = {}
        with tqdm(total=len(prompts), desc="answers by the target", unit="prompt", disable=not show_bars()) as bar:
            for start in range(0, len(prompts), size):
                batch = prompts[start : start + size]
                spoken = answer_prompts(model, tokenizer, batch, self.answering.settings)
                fresh = {prompt: (a.text, a.complete) for prompt, a in zip(batch, spoken, strict=True)}
                self.answering.save(fresh)
                answers |= fresh
                bar.update(len(batch))
        return answers


def _refuse_missing(prompts: Sequence[str]) -> dict[str, Answered]:
    raise Refused(
        f"{len(prompts)} answers are not in the warehouse", where="target_responses", fix="materialise target_responses"
    )


def _key(prompt: str) -> str:
    return hashlib.sha256(prompt.encode()).hexdigest()
