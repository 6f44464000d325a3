"""Text that spells a control token, such as `<|im_end|>` in somebody's message, stays text.

Such text is marked before the template prints it: a private character is put inside it. Where the mark comes out is
text, whatever it looks like; every other control token was written by the template.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tokenizers import Tokenizer

from dflash_pipeline.contracts.conversation import Message

Range = tuple[int, int]

MARK = "\ufdef"
"""One of Unicode's noncharacters: no text is meant to hold it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Masked:
    """A conversation in which no message spells a control token any more."""

    messages: tuple[Message, ...]
    tools: str | None


class ControlText:
    """Which text spells control tokens of a tokenizer.

    In what the model did not write, these are all tokens that were added to the vocabulary. In its own turns only the
    special ones: `<think>` or `<tool_call>` there is what it said.
    """

    def __init__(self, backend: Tokenizer) -> None:
        added = backend.get_added_tokens_decoder().values()
        self._every = _any_of([token.content for token in added])
        self._special = _any_of([token.content for token in added if token.special])

    def spelled(self, messages: Sequence[Message], tools: str | None) -> bool:
        """Whether any message, tool call or tool spells one."""
        return any(
            (self._special if message.role == "assistant" else self._every).search(text)
            for message in messages
            for text in (message.content, message.reasoning, message.tool_calls)
            if text
        ) or bool(tools and self._every.search(tools))

    def masked(self, messages: Sequence[Message], tools: str | None) -> tuple[Masked, Masked]:
        """The conversation with marks in all that spells a control token; and with marks in special ones alone.

        The second is for templates that read text such as `<tool_response>` in a message as a mark of their own.
        """
        return (
            _masked(messages, tools, self._every, self._special),
            _masked(messages, tools, self._special, self._special),
        )

    def kept(self, text: str, marks: Sequence[int]) -> tuple[Range, ...]:
        """The characters of what `marks`, places in the marked text, were put into."""
        starts = [place - number - 1 for number, place in enumerate(marks)]
        found = [self._every.match(text, start) for start in starts]
        return tuple(match.span() for match in found if match)


def unmasked(text: str) -> tuple[str, tuple[int, ...]]:
    """The text without marks, and where in the marked text they were."""
    return text.replace(MARK, ""), tuple(mark.start() for mark in re.finditer(MARK, text))


def shifted(position: int, marks: Sequence[int]) -> int:
    """The place in the text without marks of a place in the marked text."""
    return position - bisect_left(marks, position)


def _masked(messages: Sequence[Message], tools: str | None, others: re.Pattern[str], models: re.Pattern[str]) -> Masked:
    return Masked(
        messages=tuple(_masked_message(m, models if m.role == "assistant" else others) for m in messages),
        # As JSON, so that keys are marked as well; none of these tokens holds a quote or a backslash.
        tools=tools and _break(others, tools),
    )


def _masked_message(message: Message, spelled: re.Pattern[str]) -> Message:
    return replace(
        message,
        content=_break(spelled, message.content),
        reasoning=message.reasoning and _break(spelled, message.reasoning),
        tool_calls=message.tool_calls and _break(spelled, message.tool_calls),
    )


def _break(spelled: re.Pattern[str], text: str) -> str:
    # Inside the token: what a template strips or looks for at the edges of a text stays as it is.
    return spelled.sub(lambda found: f"{found[0][0]}{MARK}{found[0][1:]}", text)


def _any_of(tokens: Sequence[str]) -> re.Pattern[str]:
    # A token of one character cannot be broken from inside, and is a word rather than a control token.
    longest_first = sorted((token for token in tokens if len(token) > 1), key=lambda token: (-len(token), token))
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
