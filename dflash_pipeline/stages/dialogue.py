"""A conversation that is being answered anew, turn by turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from dflash_pipeline.contracts.conversation import Conversation, Message
from dflash_pipeline.contracts.results import FAILURES, NoAnswer, Reply
from dflash_pipeline.ingest.thinking import open_thought


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A prompt, and what it was rendered from."""

    prompt: str
    said: tuple[Message, ...]
    with_tools: bool
    """Whether tools are at hand or called anywhere in the conversation."""


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
class Answers:
    """What became of conversations that were answered."""

    conversations: tuple[Conversation, ...]
    """With the target's answers, in the order given."""
    left_out: tuple[tuple[NoAnswer, int], ...]
    """Conversations that lack an answer, by the reason for it."""
    num_prompts: int
    failed: frozenset[str]
    """Prompts that have no answer by a failure: what comes of them may change."""
    opened: bool
    """Whether any prompt opened a thought, so that an answer's text begins with what the prompt wrote of it."""

    def count(self, reason: NoAnswer) -> int:
        return dict(self.left_out).get(reason, 0)


def answer_conversations(
    conversations: Sequence[Conversation],
    *,
    render: Callable[[Dialogue], str],
    replies: Callable[[Sequence[Question]], Mapping[str, Reply]],
) -> Answers:
    """Every assistant turn of every conversation, answered: round after round, all prompts of a round together.

    `replies` gives what came of each distinct prompt, shortest prompts first. A conversation that lacks an answer, or
    whose answer was cut while the target was still thinking, is left out: no template prints an unfinished thought as
    the target wrote it.
    """
    going: dict[int, Dialogue] = {i: Dialogue.begin(c) for i, c in enumerate(conversations)}
    left_out: Counter[NoAnswer] = Counter()
    asked: set[str] = set()
    failed: set[str] = set()
    opened = False
    while prompts := {i: render(d) for i, d in going.items() if not d.finished}:
        questions = {
            prompt: Question(prompt=prompt, said=going[i].said, with_tools=_with_tools(going[i].conversation))
            for i, prompt in prompts.items()
        }
        wanted = sorted(questions.values(), key=lambda question: (len(question.prompt), question.prompt))
        known = replies(wanted)
        asked |= questions.keys()
        for i, prompt in prompts.items():
            begun = open_thought(prompt)
            opened = opened or bool(begun)
            reply = known[prompt]
            reason = reply.reason or _lack(begun + reply.text, reply)
            if reason is None:
                going[i] = going[i].answered(begun + reply.text, reply.complete)
            else:
                left_out[reason] += 1
                del going[i]
                failed |= {prompt} if reason in FAILURES else set()
    return Answers(
        conversations=tuple(replace(d.conversation, messages=d.said) for d in going.values()),
        left_out=tuple(sorted(left_out.items())),
        num_prompts=len(asked),
        failed=frozenset(failed),
        opened=opened,
    )


def _with_tools(conversation: Conversation) -> bool:
    return conversation.tools is not None or any(m.role == "tool" or m.tool_calls for m in conversation.messages)


def _lack(text: str, reply: Reply) -> NoAnswer | None:
    if not reply.text.strip():
        return "empty"
    unfinished = text.rpartition("<think>")
    return "cut_in_thought" if not reply.complete and unfinished[1] and "</think>" not in unfinished[2] else None
