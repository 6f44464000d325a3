"""Rows that nobody would write: the totals add up, and what is taken is taken character for character."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_pipeline.contracts.candidate import Candidate
from dflash_pipeline.contracts.conversation import Conversation, RejectedRow
from dflash_pipeline.ingest.ingestion import read_verdicts
from dflash_pipeline.ingest.sources import SourceFile, look_at
from tests.ingest.taking import RULES, take_all

# Everything but halves of surrogate pairs, which UTF-8 cannot hold.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ANSWER = TEXT.filter(str.strip)
NUMBERS = st.integers(-(10**400), 10**400) | st.floats()
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=10,
)
FIELDS = st.sampled_from(
    [
        "messages",
        "conversations",
        "prompt",
        "question",
        "answer",
        "text",
        "input_ids",
        "loss_mask",
        "turns",
        "tools",
        "id",
    ]
)
ROLES = st.sampled_from(["user", "assistant", "system", "tool", "human", "gpt", "function_call", "wizard"]) | VALUES
TURNS = st.lists(
    st.fixed_dictionaries(
        {}, optional={"role": ROLES, "content": VALUES, "from": ROLES, "value": VALUES, "tool_calls": VALUES}
    ),
    max_size=4,
)
ODD = st.dictionaries(FIELDS, VALUES | TURNS, max_size=4)
GOOD = st.tuples(st.sampled_from(["messages", "question", "text"]), ANSWER, ANSWER)


def good_row(shape: str, number: int, asked: str, answered: str) -> dict[str, Any]:
    row: dict[str, Any] = {"id": f"good {number}"}
    if shape == "messages":
        row["messages"] = [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
    elif shape == "question":
        row |= {"question": asked, "answer": answered}
    else:
        row["text"] = answered
    return row


def deep(levels: int) -> str:
    return '{"a":' + "[" * levels + "]" * levels + "}"


RAW = st.sampled_from(
    [
        '{"id":"x","id":"x"}',
        '{"a":NaN}',
        '{"a":1e999}',
        '{"a":"\\ud800"}',
        deep(70),
        deep(5000),
        "{",
        "null",
        '{"a":' + "9" * 2000 + "}",
    ]
) | TEXT.map(lambda text: text.replace("\n", " "))


@dataclass(frozen=True, kw_only=True, slots=True)
class Hostile:
    """A file of hostile rows, and what must come of it."""

    name: str
    content: bytes
    num_rows: int
    texts: dict[str, list[str]]
    """Of the good rows, by id."""


@st.composite
def hostile_files(draw: st.DrawFn) -> Hostile:
    as_array = draw(st.booleans())
    lines: list[str] = []
    texts: dict[str, list[str]] = {}
    for number, row in enumerate(draw(st.lists(GOOD | ODD | RAW, max_size=8))):
        if isinstance(row, tuple):
            shape, asked, answered = row
            lines.append(json.dumps(good_row(shape, number, asked, answered), ensure_ascii=False))
            texts[f"good {number}"] = [answered] if shape == "text" else [asked, answered]
        elif isinstance(row, dict):
            lines.append(json.dumps(row))
        elif not as_array:
            lines.append(row)
    return Hostile(
        name="rows.json" if as_array else "rows.jsonl",
        content=(f"[{','.join(lines)}]" if as_array else "\n".join(lines)).encode(),
        num_rows=len(lines) if as_array else sum(bool(line.strip(" \t\r")) for line in lines),
        texts=texts,
    )


def texts_of(row: Candidate | Conversation) -> list[str]:
    return [row.document] if row.document else [m.content for m in row.messages]


@settings(deadline=None)
@given(file=hostile_files())
def test_every_row_gets_one_verdict_and_good_ones_keep_their_text(file: Hostile) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / file.name
        path.write_bytes(file.content)
        rows = list(read_verdicts(look_at(SourceFile(path=path), RULES.limits), RULES))
    assert len(rows) == file.num_rows
    verdicts = [verdict for row in rows for verdict in row]
    taken = {v.conversation_id: v for v in verdicts if isinstance(v, Candidate) and v.answered}
    assert file.texts == {i: texts_of(taken[i]) for i in file.texts}
    for row in rows:
        final = [v for v in row if isinstance(v, RejectedRow) or v.answered]
        assert len(final) == 1
        if isinstance(final[0], RejectedRow):
            assert file.content[final[0].byte_offset :].startswith(final[0].excerpt[:5].encode())


@settings(deadline=None, max_examples=5)
@given(file=hostile_files())
def test_totals_add_up(file: Hostile) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / file.name
        path.write_bytes(file.content)
        ingestion, conversations, rejected, prompts = take_all([path], RULES)
    [report] = ingestion.sources
    assert report.error is None
    assert report.accepted + report.rejected + report.exact_duplicates == file.num_rows
    assert (len(conversations), len(rejected)) == (report.accepted, report.rejected)
    assert len(prompts) == ingestion.num_prompts <= ingestion.rejected
    kept = {c.conversation_id: texts_of(c) for c in conversations}
    assert file.texts == {i: kept[i] for i in file.texts}
