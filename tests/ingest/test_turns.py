from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_pipeline.ingest.conversation import read_turns, row_id
from dflash_pipeline.ingest.rows import RowError

USER = {"role": "user", "content": "q"}
ANSWER = {"role": "assistant", "content": "a"}
QA = {"user": "question", "assistant": "answer"}


@given(user=st.text(), answer=st.text().filter(str.strip))
def test_text_is_kept_character_for_character(user: str, answer: str) -> None:
    by_chat = read_turns({"messages": [USER | {"content": user}, ANSWER | {"content": answer}]}, {})
    by_field = read_turns({"question": user, "answer": answer}, QA)
    by_value = read_turns({"conversations": [{"from": "human", "value": user}, {"from": "gpt", "value": answer}]}, {})
    assert [m.content for m in by_chat.messages] == [user, answer]
    assert by_chat == by_field == by_value


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({}, "no_messages"),
        ({"messages": {}}, "no_messages"),
        ({"messages": [None]}, "bad_message"),
        ({"messages": [{"content": "x"}]}, "bad_role"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "bad_role"),
        ({"messages": [{"role": "human", "content": "x"}, ANSWER]}, "bad_role"),
        ({"messages": [{"role": "User", "content": "x"}, ANSWER]}, "bad_role"),
        ({"messages": [{"role": "user", "content": None}, ANSWER]}, "missing_content"),
        ({"messages": [USER, {"role": "assistant", "content": 5}]}, "unsupported_content"),
        ({"messages": [USER, {"role": "assistant", "content": [{"type": "text"}]}]}, "unsupported_content"),
        ({"messages": [USER, ANSWER | {"reasoning_content": 5}]}, "unsupported_content"),
        ({"messages": [USER, ANSWER | {"tool_calls": "f()"}]}, "bad_tool_calls"),
        ({"messages": [USER, ANSWER], "tools": ["f"]}, "bad_tools"),
        ({"messages": [ANSWER, USER, ANSWER]}, "starts_with_assistant"),
        ({"messages": [{"role": "system", "content": "s"}, ANSWER]}, "starts_with_assistant"),
        ({"messages": [{"role": "tool", "content": "x"}, USER, ANSWER]}, "starts_with_tool"),
        ({"messages": [USER, {"role": "tool", "content": "x"}]}, "no_assistant"),
        ({"messages": [USER, {"role": "assistant", "content": None}]}, "empty_assistant"),
        ({"messages": [USER, {"role": "assistant", "content": " \n", "tool_calls": []}]}, "empty_assistant"),
        ({"messages": [USER, ANSWER, USER, {"role": "assistant", "content": ""}]}, "empty_assistant"),
    ],
)
def test_reasons(value: dict[str, Any], reason: str) -> None:
    with pytest.raises(RowError, match=f"^{reason}$"):
        read_turns(value, {})


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"question": "q"}, "missing_field"),
        ({"question": None, "answer": "a"}, "missing_field"),
        ({"question": "q", "answer": 4}, "unsupported_content"),
        ({"question": "q", "answer": " "}, "empty_assistant"),
        ({"messages": [USER, ANSWER]}, "missing_field"),
    ],
)
def test_reasons_of_mapped_rows(value: dict[str, Any], reason: str) -> None:
    with pytest.raises(RowError, match=f"^{reason}$"):
        read_turns(value, QA)


@pytest.mark.parametrize(("prompt", "roles"), [("be brief", 3), ("", 2), (None, 2)])
def test_a_mapped_system_field_may_be_empty(prompt: str | None, roles: int) -> None:
    turns = read_turns({"s": prompt, "question": "q", "answer": "a"}, {**QA, "system": "s"})
    assert len(turns.messages) == roles


def test_thought_tools_and_calls_are_kept() -> None:
    call = {"name": "f", "arguments": {"z": 1, "a": "é"}}
    answer = ANSWER | {"reasoning_content": " why\n", "tool_calls": [call]}
    messages = [USER, answer, {"role": "tool", "content": "1"}]
    turns = read_turns({"messages": messages, "tools": [{"b": 1, "a": 2}]}, {})
    assert turns.messages[1].reasoning == " why\n"
    assert turns.messages[1].tool_calls == '[{"name":"f","arguments":{"z":1,"a":"é"}}]'
    assert turns.tools == '[{"b":1,"a":2}]'


def test_digests_tell_texts_apart() -> None:
    variants = [
        {"messages": [USER, ANSWER]},
        {"messages": [USER, ANSWER | {"content": "a "}]},
        {"messages": [USER, ANSWER | {"reasoning_content": "a"}]},
        {"messages": [USER, ANSWER], "tools": [{}]},
        {"messages": [USER, USER, ANSWER]},
    ]
    assert len({read_turns(value, {}).digest for value in variants}) == len(variants)


@pytest.mark.parametrize(
    ("given_id", "text"), [(7, "7"), ("7 ", "7 "), (10**30, "1" + "0" * 30), (None, None), ("", None), (0, "0")]
)
def test_ids_are_text(given_id: object, text: str | None) -> None:
    assert row_id({"id": given_id}) == text


@pytest.mark.parametrize("given_id", [True, 1.0, [1], {}])
def test_odd_ids(given_id: object) -> None:
    with pytest.raises(RowError, match="bad_id"):
        row_id({"id": given_id})
