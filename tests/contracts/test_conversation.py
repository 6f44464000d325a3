"""Conversations and the counts of an ingestion: what is just allowed, and what is refused in which words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from dflash_pipeline.contracts.conversation import (
    Conversation,
    Ingestion,
    Message,
    PreTokenised,
    RejectedRow,
    SourceReport,
)
from dflash_pipeline.contracts.errors import ContractBroken

SYSTEM, USER = Message(role="system", content="be brief"), Message(role="user", content="how many?")
ANSWER = Message(role="assistant", content="four")
TURNS = Conversation(conversation_id="c", messages=(SYSTEM, USER, ANSWER), split="train", file="f", line=1)
DOCUMENT = replace(TURNS, messages=(), document="text")
TOKENS = PreTokenised(token_ids=(0, 2**31 - 1), loss_mask=(False, True))
ROW = RejectedRow(file="f", line=1, byte_offset=0, conversation_id=None, reason="bad_id", excerpt="{")
SOURCE = SourceReport(file="f", sha256="s", accepted=3, rejected=2, exact_duplicates=1, error=None)
OTHER = SourceReport(file="g", sha256="s", accepted=0, rejected=0, exact_duplicates=0, error="torn")
INGESTION = Ingestion(
    fingerprint="i",
    accepted=3,
    rejected=2,
    exact_duplicates=1,
    num_train=2,
    num_validation=1,
    sources=(SOURCE, OTHER),
    by_reason={"bad_id": 1, "no_messages": 1},
    num_prompts=2,
)


def test_what_is_just_allowed():
    assert replace(ANSWER, complete=False, reasoning="", tool_calls="[]").role == "assistant"
    assert replace(TURNS, messages=(USER, ANSWER, USER), split="validation").line == 1
    assert replace(DOCUMENT, document=None, tokenised=TOKENS).tokenised == TOKENS
    assert PreTokenised(token_ids=(5,), loss_mask=(True,)).token_ids == (5,)
    for record in (ROW, SOURCE, OTHER, TOKENS):
        assert replace(record) == record
    assert replace(SOURCE, accepted=0, rejected=0, exact_duplicates=0).error is None
    assert INGESTION.num_rows == 6
    assert replace(INGESTION, num_train=3, num_validation=0, num_prompts=0).accepted == 3
    assert replace(INGESTION, num_train=0, num_validation=3).accepted == 3


CONVERSATION = "conversation 'c', f line 1"
REASONS = "use a reason of contracts/conversation.py; count lines from 1 and bytes from 0"
COUNTS = "count from 0, and keep nothing of a file that failed"
ONCE = "count every row of every file exactly once"
NAMED = "name reasons of contracts/conversation.py that occurred, and count from 0"
FIRST_TURN = "a conversation starts with a user turn and holds an assistant turn; reject the row instead"
ONLY_ANSWERS = "keep complete=False, reasoning and tool_calls for assistant turns"
IDS = "give ids of 0 and more that fit into 32 bits"
MARKS = "give at least one token, and one mark a token"
SENTENCES: list[tuple[Callable[[], object], str, str, str]] = [
    (
        lambda: Message(role="critic", content="x"),  # type: ignore[arg-type]
        "message",
        "role 'critic'",
        "use one of system, user, assistant, tool",
    ),
    (lambda: replace(USER, complete=False), "message", "a user turn that is cut, reasons or calls tools", ONLY_ANSWERS),
    (lambda: replace(USER, reasoning=""), "message", "a user turn that is cut, reasons or calls tools", ONLY_ANSWERS),
    (
        lambda: replace(SYSTEM, tool_calls="[]"),
        "message",
        "a system turn that is cut, reasons or calls tools",
        ONLY_ANSWERS,
    ),
    (
        lambda: PreTokenised(token_ids=(), loss_mask=()),
        "pre-tokenised row",
        "0 token ids with a loss mask of 0",
        MARKS,
    ),
    (
        lambda: PreTokenised(token_ids=(1, 2), loss_mask=(True,)),
        "pre-tokenised row",
        "2 token ids with a loss mask of 1",
        MARKS,
    ),
    (
        lambda: PreTokenised(token_ids=(-1, 2), loss_mask=(True, True)),
        "pre-tokenised row",
        "token ids from -1 to 2",
        IDS,
    ),
    (
        lambda: PreTokenised(token_ids=(0, 2**31), loss_mask=(True, True)),
        "pre-tokenised row",
        f"token ids from 0 to {2**31}",
        IDS,
    ),
    (
        lambda: replace(TURNS, conversation_id=""),
        "conversation '', f line 1",
        "a conversation without an id",
        "derive one from its content",
    ),
    (
        lambda: replace(TURNS, split="test"),
        CONVERSATION,
        "split 'test', line 1",
        "use train or validation, lines from 1",
    ),
    (
        lambda: replace(TURNS, line=0),
        "conversation 'c', f line 0",
        "split 'train', line 0",
        "use train or validation, lines from 1",
    ),
    (lambda: replace(DOCUMENT, document=""), CONVERSATION, "an empty document", "reject the row instead"),
    (
        lambda: replace(TURNS, document="text"),
        CONVERSATION,
        "more than one of messages, document and tokens",
        "give one of the three",
    ),
    (
        lambda: replace(DOCUMENT, tokenised=TOKENS),
        CONVERSATION,
        "more than one of messages, document and tokens",
        "give one of the three",
    ),
    (
        lambda: replace(TURNS, tokenised=TOKENS),
        CONVERSATION,
        "more than one of messages, document and tokens",
        "give one of the three",
    ),
    (lambda: replace(TURNS, messages=()), CONVERSATION, "turns (none) after the system's", FIRST_TURN),
    (
        lambda: replace(TURNS, messages=(SYSTEM, ANSWER, USER)),
        CONVERSATION,
        "turns assistant, user after the system's",
        FIRST_TURN,
    ),
    (lambda: replace(TURNS, messages=(USER,)), CONVERSATION, "turns user after the system's", FIRST_TURN),
    (lambda: replace(ROW, reason="odd"), "rejected row of f", "reason 'odd', line 1, byte 0", REASONS),
    (lambda: replace(ROW, line=0), "rejected row of f", "reason 'bad_id', line 0, byte 0", REASONS),
    (lambda: replace(ROW, byte_offset=-1), "rejected row of f", "reason 'bad_id', line 1, byte -1", REASONS),
    (
        lambda: replace(SOURCE, rejected=-1),
        "source f",
        "accepted, rejected, duplicates (3, -1, 1) with error None",
        COUNTS,
    ),
    (
        lambda: replace(OTHER, exact_duplicates=1),
        "source g",
        "accepted, rejected, duplicates (0, 0, 1) with error 'torn'",
        COUNTS,
    ),
    (
        lambda: replace(INGESTION, accepted=4, num_train=3),
        "ingestion i",
        "accepted is 4, but 3 over the sources",
        ONCE,
    ),
    (lambda: replace(INGESTION, rejected=3), "ingestion i", "rejected is 3, but 2 over the sources", ONCE),
    (
        lambda: replace(INGESTION, exact_duplicates=0),
        "ingestion i",
        "exact_duplicates is 0, but 1 over the sources",
        ONCE,
    ),
    (lambda: replace(INGESTION, num_train=3), "ingestion i", "accepted is 3, but 4 as train + validation", ONCE),
    (lambda: replace(INGESTION, by_reason={"bad_id": 1}), "ingestion i", "rejected is 2, but 1 by reason", ONCE),
    (
        lambda: replace(INGESTION, by_reason={"odd": 2}),
        "ingestion i",
        "reasons ['odd'], 2 train, 1 validation, 2 prompts",
        NAMED,
    ),
    (
        lambda: replace(INGESTION, by_reason={"bad_id": 2, "no_messages": 0}),
        "ingestion i",
        "reasons ['no_messages'], 2 train, 1 validation, 2 prompts",
        NAMED,
    ),
    (
        lambda: replace(INGESTION, num_train=4, num_validation=-1),
        "ingestion i",
        "reasons [], 4 train, -1 validation, 2 prompts",
        NAMED,
    ),
    (
        lambda: replace(INGESTION, num_prompts=3),
        "ingestion i",
        "reasons [], 2 train, 1 validation, 3 prompts",
        NAMED,
    ),
    (
        lambda: replace(INGESTION, num_prompts=-1),
        "ingestion i",
        "reasons [], 2 train, 1 validation, -1 prompts",
        NAMED,
    ),
]


@pytest.mark.parametrize(("make", "where", "what", "fix"), SENTENCES, ids=[row[2] for row in SENTENCES])
def test_a_broken_record_says_where_what_and_what_to_do(make, where, what, fix):
    with pytest.raises(ContractBroken) as broken:
        make()
    assert (broken.value.where, broken.value.what, broken.value.fix) == (where, what, fix)
