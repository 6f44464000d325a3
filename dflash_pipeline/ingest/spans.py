"""Which characters of a rendered conversation its model wrote.

Where each assistant text stands between the template's own header and end marker, word for word, that is read off the
text. Otherwise the template is given each assistant text wrapped in private marks. Where the marks come out is where
the text went, whatever the template strips, moves or adds; taking them out must leave the plain rendering, byte for
byte.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any, Literal, get_args

Span = tuple[int, int]
Kind = Literal["body", "reasoning", "call"]
Grip = Literal["whole", "stripped", "split"]
"""How texts are wrapped: as they are, for templates that print them so; without outer white space, for those that
strip; and apart at thinking tags, for those that move or drop thoughts. Tried in this order, the most exact first."""

Messages = list[dict[str, Any]]

_THINK_TAG = re.compile(r"(</?think>)")
_EMPTY_THOUGHT = re.compile(r"<think>\s*</think>\s*")
# In a turn's own text; the first may be opened by the generation prompt, the last may never be closed.
_TAGGED_THOUGHT = re.compile(r"\A(?:(?!<think>).)*?</think>\s*|<think>.*?</think>\s*|\A<think>.*\Z", re.DOTALL)
# Unicode's noncharacters: no text is meant to hold them, no template knows them, and JSON prints them as they are.
_ALPHABETS = tuple(tuple(map(chr, range(first, first + 3))) for first in range(0xFDD0, 0xFDEE, 3))


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnForm:
    """How a template opens and closes an assistant's turn."""

    headers: tuple[str, ...]
    """What stands before the text the model writes: the generation prompt, then shorter forms of it."""
    end_markers: tuple[str, ...]
    """Tokens that end a turn, longest first."""
    own: bool = False
    """Whether every header and end marker holds a control token, which no text of a message can spell."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnSpan:
    """The characters of one assistant turn: from the first that the model wrote, to its end marker."""

    start: int
    end: int
    header_end: int
    """Where the turn's role header ends: before `start` if the generation prompt, or the template, opens a thought."""
    thoughts: tuple[Span, ...] = ()
    """What of start to end is thinking, with the tags around it; ascending."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A stretch of one assistant message that is followed through the template."""

    message: int
    kind: Kind
    lead: str = ""
    """White space of the message's own right before the piece; the template may keep it or not."""
    trail: str = ""
    start: int = 0
    end: int = 0


def find_turns(
    messages: Messages, render: Callable[[Messages], str], plain: str, *, form: TurnForm, cut: frozenset[int]
) -> tuple[TurnSpan, ...] | None:
    """The assistant turns in `plain`, one for each assistant message that the template printed.

    `plain` is what `render` makes of the messages, none of which spells a control token. Messages in `cut` have no end
    marker of their own. None when the template does more to the texts than can be followed.
    """
    if form.own and not cut and (turns := read_off(messages, plain, form)) is not None:
        return turns
    alphabet = next((a for a in _ALPHABETS if not any(mark in plain for mark in a)), None)
    if alphabet is None:
        return None
    for grip in get_args(Grip):
        marker = _Marker(alphabet, grip)
        marked = render([marker.message(i, message) for i, message in enumerate(messages)])
        pieces = marker.found_in(marked, plain)
        if pieces is not None:
            return _turns(pieces, plain, form, cut)
    return None


def read_off(messages: Messages, plain: str, form: TurnForm) -> tuple[TurnSpan, ...] | None:
    """The turns of a template that prints plain answers word for word between header and end marker; None otherwise.

    Without a second rendering. Exact, since only the template can write the control tokens of header and marker.
    """
    longest, shortest = form.headers[0], form.headers[-1]
    turns: list[TurnSpan] = []
    read = 0
    for message in messages:
        if message["role"] != "assistant":
            continue
        content = message["content"]
        at = plain.find(shortest, read)
        if at < 0 or not content or "tool_calls" in message or message.get("reasoning_content"):
            return None
        header_end = at + len(shortest)
        start = at + len(longest) if plain.startswith(longest, at) else header_end
        empty = _EMPTY_THOUGHT.match(plain, start)
        if "<think>" in content or "</think>" in content:
            return None
        start = empty.end() if empty else start
        end = start + len(content)
        marker = next((m for m in form.end_markers if plain.startswith(m, end)), None)
        if marker is None or not plain.startswith(content, start):
            return None
        read = end + len(marker)
        turns.append(TurnSpan(start=start, end=read, header_end=header_end))
    return tuple(turns) if plain.find(shortest, read) < 0 else None


def marked_turns(text: str, form: TurnForm) -> tuple[TurnSpan, ...]:
    """The assistant turns of a text that is a rendered conversation already; none when no header of theirs is in it.

    Every control token in such a text is one. A turn without an end marker goes on to the end of the text.
    """
    if not form.own:
        return ()
    longest, shortest = form.headers[0], form.headers[-1]
    turns: list[TurnSpan] = []
    at = text.find(shortest)
    while at >= 0:
        header_end = at + len(shortest)
        start = at + len(longest) if text.startswith(longest, at) else header_end
        ends = [found + len(marker) for marker in form.end_markers if (found := text.find(marker, start)) >= 0]
        end = min(ends, default=len(text))
        empty = _EMPTY_THOUGHT.match(text, start, end)
        start = empty.end() if empty else start
        if start < end:
            turns.append(
                TurnSpan(start=start, end=end, header_end=header_end, thoughts=_thoughts((), text, start, end))
            )
        at = text.find(shortest, end)
    return tuple(turns)


def without(spans: Sequence[Span], holes: Sequence[Span]) -> list[Span]:
    """Spans with holes taken out of them; both ascending."""
    left: list[Span] = []
    for start, end in spans:
        edges = [(start, start), *((max(a, start), min(b, end)) for a, b in holes if a < end and b > start), (end, end)]
        left += [(before, after) for (_, before), (after, _) in pairwise(edges) if before < after]
    return left


class _Marker:
    """Wraps pieces in numbered marks, and finds them again."""

    def __init__(self, alphabet: Sequence[str], grip: Grip) -> None:
        self._begin, self._end, self._close = alphabet
        self._grip = grip
        self._pieces: list[Piece] = []

    def message(self, index: int, message: dict[str, Any]) -> dict[str, Any]:
        if message["role"] != "assistant":
            return message
        marked = dict(message)
        if message.get("reasoning_content"):
            marked["reasoning_content"] = self._text(index, "reasoning", message["reasoning_content"])
        if self._grip == "split":
            marked["content"] = self._parts(index, message["content"])
        else:
            marked["content"] = self._text(index, "body", message["content"])
        if "tool_calls" in message:
            marked["tool_calls"] = [self._call(index, call) for call in message["tool_calls"]]
        return marked

    def _parts(self, index: int, content: str) -> str:
        parts = _THINK_TAG.split(content)
        for at in range(0, len(parts), 2):
            kind: Kind = "reasoning" if parts[at + 1 : at + 2] == ["</think>"] else "body"
            parts[at] = self._text(index, kind, parts[at])
        return "".join(parts)

    def _text(self, index: int, kind: Kind, text: str) -> str:
        core = text if self._grip == "whole" else text.strip()
        # An empty text stays empty: templates ask whether there is one.
        if not core:
            return text
        lead, _, trail = text.partition(core)
        self._pieces.append(Piece(message=index, kind=kind, lead=lead, trail=trail))
        return f"{lead}{self._wrapped(core)}{trail}"

    def _call(self, index: int, call: dict[str, Any]) -> dict[str, Any]:
        inner = call.get("function", call)
        if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
            return call
        self._pieces.append(Piece(message=index, kind="call"))
        named = {**inner, "name": self._wrapped(inner["name"])}
        return {**call, "function": named} if "function" in call else named

    def _wrapped(self, text: str) -> str:
        number = len(self._pieces) - 1
        return f"{self._begin}{number}{self._close}{text}{self._end}{number}{self._close}"

    def found_in(self, marked: str, plain: str) -> list[Piece] | None:
        """The pieces that were printed, in printed order; None unless each came out once, whole and in its turn."""
        chunks: list[str] = []
        places: list[tuple[bool, int, int]] = []
        read = length = 0
        for mark in re.finditer(f"([{self._begin}{self._end}])([0-9]+){self._close}", marked):
            chunks.append(marked[read : mark.start()])
            length += mark.start() - read
            read = mark.end()
            places.append((mark[1] == self._begin, int(mark[2]), length))
        chunks.append(marked[read:])
        if "".join(chunks) != plain:
            return None
        begins, ends = places[::2], places[1::2]
        numbers = [number for _, number, _ in begins]
        paired = [(False, number) for number in numbers] == [end[:2] for end in ends]
        if not paired or not all(is_begin for is_begin, _, _ in begins) or len(set(numbers)) < len(numbers):
            return None
        found = [
            replace(self._pieces[number], start=start, end=end)
            for (_, number, start), (_, _, end) in zip(begins, ends, strict=True)
        ]
        turns = [piece.message for piece in found]
        return found if turns == sorted(turns) else None


def _turns(pieces: Sequence[Piece], plain: str, form: TurnForm, cut: frozenset[int]) -> tuple[TurnSpan, ...]:
    if not pieces:
        return ()
    turns = [list(group) for _, group in groupby(pieces, key=lambda piece: piece.message)]
    limits = [turn[0].start for turn in turns[1:]] + [len(plain)]
    found: list[TurnSpan] = []
    for turn, limit in zip(turns, limits, strict=True):
        header_end, start = _start(turn[0], plain, form, lowest=found[-1].end if found else 0)
        end = _end(turn[-1], plain, form, limit=limit, cut=turn[0].message in cut)
        thoughts = _thoughts(turn, plain, start, end)
        found.append(TurnSpan(start=start, end=end, header_end=header_end, thoughts=thoughts))
    return tuple(found)


def _start(first: Piece, plain: str, form: TurnForm, *, lowest: int) -> Span:
    """Where the turn's header ends, and where the model begins."""
    opening = _header_end(first, plain, form, lowest=lowest)
    if opening is None:
        return first.start, first.start
    header_end, begins = opening
    if first.kind == "body":
        return header_end, begins if plain[begins : first.start] == first.lead else first.start
    # The model opens its thought or call itself; a thought that the template left empty is not the model's.
    empty = _EMPTY_THOUGHT.match(plain, begins, first.start)
    return header_end, empty.end() if empty else begins


def _header_end(first: Piece, plain: str, form: TurnForm, *, lowest: int) -> Span | None:
    """Where the role header ends, and where the generation prompt does that begins with it."""
    for header in form.headers:
        at = plain.rfind(header, lowest, first.start)
        end = at + len(header)
        # A header with an end marker after it is a quotation in somebody else's turn.
        if at >= 0 and not any(plain.find(marker, end, first.start) >= 0 for marker in form.end_markers):
            return at + len(form.headers[-1]), end
    return None


def _thoughts(turn: Sequence[Piece], plain: str, start: int, end: int) -> tuple[Span, ...]:
    """The thoughts of a turn with their tags, up to the text or call that follows."""
    found = [(start + t.start(), start + t.end()) for t in _TAGGED_THOUGHT.finditer(plain[start:end])]
    # Other tags than these are known by what stands before and after the thought.
    for piece, after in zip(turn, [*turn[1:], None][: len(turn)], strict=True):
        if piece.kind == "reasoning":
            first = start if piece is turn[0] else piece.start
            found.append((first, after.start if after and after.kind == "body" else piece.end))
    joined: list[Span] = []
    for first, last in sorted(found):
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return tuple(joined)


def _end(last: Piece, plain: str, form: TurnForm, *, limit: int, cut: bool) -> int:
    end = last.end
    if last.trail and plain.startswith(last.trail, end):
        end += len(last.trail)
    if cut:
        return end
    if last.kind == "body":
        return next((end + len(marker) for marker in form.end_markers if plain.startswith(marker, end)), end)
    # After a thought or the name of a call the turn goes on to its marker: closing tag, arguments, brackets.
    ends = [(at, at + len(m)) for m in form.end_markers if (at := plain.find(m, end, limit)) >= 0]
    return min(ends)[1] if ends else end
