"""Every shape in which data sets hold a conversation, each in a row or two of our own writing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dflash_pipeline.contracts.conversation import PreTokenised
from dflash_pipeline.ingest.conversation import PromptOnly, Turns, read_turns
from dflash_pipeline.ingest.rows import RowError
from dflash_pipeline.ingest.shapes import unfold
from tests.ingest.taking import take

CALL = {"name": "look_up", "arguments": {"city": "Ulm", "days": 2}}
CALLS = json.dumps([{"type": "function", "function": CALL}], separators=(",", ":"))
USER, ANSWER = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}


def said(row: dict[str, Any], mapping: dict[str, str] | None = None) -> list[tuple[str, str]]:
    return [(m.role, m.content) for m in read_turns(row, mapping or {}).messages]


QA = [("user", "q"), ("assistant", "a")]
ALIKE: list[dict[str, Any]] = [
    {"messages": [USER, ANSWER], "label": False},
    {"chat": [USER, ANSWER]},
    {"conversation": [{"from": "user", "value": "q"}, {"from": "assistant", "value": "a"}]},
    {"traj": [USER, ANSWER], "reward": 1.0, "task_id": 3},
    {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
    {"conversations": [{"from": "human", "value": "q"}, {"from": "chatgpt", "value": "a"}]},
    {"conversations": [{"from": "human", "value": "q"}, {"from": "bing", "value": "a"}], "system": ""},
    {"conversations": [{"role": "human", "content": "q"}, {"role": "model", "content": "a"}]},
    {"conversations": json.dumps([{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}])},
    {"messages": [{"role": "user", "content": [{"type": "text", "value": "q"}]}, ANSWER]},
    {"messages": [USER, {"role": "assistant", "content": [{"type": "output_text", "text": "a"}]}]},
    {"prompt": "q", "completion": "a"},
    {"prompt": "q", "response": "a"},
    {"prompt": [USER], "completion": [ANSWER]},
    {"prompt": "q", "canonical_solution": "a", "test": "t"},
    {"question": "q", "answer": "a"},
    {"query": "q", "response": "a"},
    {"instruction": "q", "input": "", "output": "a"},
    {"instruction": "q", "output": "a", "history": []},
    {"input": "q", "output": "a"},
]


@pytest.mark.parametrize("row", ALIKE, ids=lambda row: "-".join(row))
def test_shapes_that_say_the_same(row: dict[str, Any]) -> None:
    assert said(row) == QA
    assert read_turns(row, {}).digest == read_turns(ALIKE[0], {}).digest


def test_a_system_field_and_a_history_come_first() -> None:
    row = {"instruction": "q", "input": "x\ny", "output": "a", "system": "s", "history": [["q0", "a0"], ["q1", "a1"]]}
    past = [("user", "q0"), ("assistant", "a0"), ("user", "q1"), ("assistant", "a1")]
    assert said(row) == [("system", "s"), *past, ("user", "q\nx\ny"), ("assistant", "a")]
    beside = {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}], "system": "s"}
    assert said(beside) == [("system", "s"), *QA]
    twice = {"messages": [{"role": "system", "content": "s"}, USER, ANSWER], "system": "s"}
    assert said(twice) == [("system", "s"), *QA]
    other = {"messages": [{"role": "developer", "content": "t"}, USER, ANSWER], "system": "s"}
    assert said(other) == [("system", "s"), ("system", "t"), *QA]


@pytest.mark.parametrize(
    "turn",
    [
        {"from": "function_call", "value": json.dumps(CALL)},
        {"from": "tool_call", "value": json.dumps([CALL])},
        {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": CALL}]},
        {"role": "assistant", "content": "", "tool_calls": CALLS},
        {"role": "assistant", "content": None, "function_call": CALL},
        {"role": "assistant", "content": [{"type": "tool_call", "value": json.dumps(CALL)}]},
    ],
)
def test_calls_reach_one_form(turn: dict[str, Any]) -> None:
    tools = [{"name": "look_up", "parameters": {}}]
    row = {
        "conversations": [
            {"from": "human", "value": "q"},
            turn,
            {"from": "observation", "value": '{"rain": 1}'},
            {"from": "gpt", "value": "a"},
        ],
        "tools": json.dumps(tools),
    }
    turns = read_turns(row, {})
    assert [m.role for m in turns.messages] == ["user", "assistant", "tool", "assistant"]
    assert (turns.messages[1].content, turns.messages[1].tool_calls) == ("", CALLS)
    assert turns.tools == '[{"name":"look_up","parameters":{}}]'
    assert read_turns({**row, "tools": tools}, {}) == turns


@pytest.mark.parametrize(
    "answer",
    [
        {"content": "a", "reasoning_content": "why"},
        {"content": "a", "reasoning": "why"},
        {"content": "a", "thinking": "why"},
        {"content": [{"type": "reasoning", "value": "why"}, {"type": "text", "value": "a"}]},
        {"content": [{"type": "thinking", "thinking": "why"}, {"type": "text", "text": "a"}]},
    ],
)
def test_thoughts_reach_one_form(answer: dict[str, Any]) -> None:
    message = read_turns({"messages": [USER, {"role": "assistant", **answer}]}, {}).messages[1]
    assert (message.reasoning, message.content) == ("why", "a")


def test_a_thought_in_the_text_stays_there() -> None:
    text = "<think>\nwhy\n</think>\n\na"
    message = read_turns({"messages": [USER, {"role": "assistant", "content": text}]}, {}).messages[1]
    assert (message.reasoning, message.content) == (None, text)


def test_text_is_a_document() -> None:
    assert read_turns({"text": " <|im_start|>as it is\n"}, {}) == Turns(document=" <|im_start|>as it is\n")
    assert read_turns({"body": "b"}, {"text": "body"}) == Turns(document="b")


@pytest.mark.parametrize(
    ("row", "mask"),
    [
        ({"loss_mask": [0, 1, 1]}, (False, True, True)),
        ({"loss_mask": [False, True, False]}, (False, True, False)),
        ({"assistant_masks": "[1, 0, 1]"}, (True, False, True)),
        ({"labels": [-100, 8, 9]}, (False, True, True)),
        ({"loss_mask": [1, 1, 1], "labels": [-100, 8, 9]}, (True, True, True)),
    ],
)
def test_tokens_are_taken_as_they_are(row: dict[str, Any], mask: tuple[bool, ...]) -> None:
    turns = read_turns({"input_ids": [7, 8, 9], **row}, {})
    assert turns == Turns(tokenised=PreTokenised(token_ids=(7, 8, 9), loss_mask=mask))


def test_tokens_of_one_prompt_decide_one_side() -> None:
    one = read_turns({"input_ids": [7, 8, 9], "loss_mask": [0, 0, 1]}, {})
    other = read_turns({"input_ids": [7, 8, 5, 5], "loss_mask": [0, 0, 1, 1]}, {})
    assert one.first_user_text == other.first_user_text == "7 8"
    assert read_turns({"input_ids": [7, 8], "loss_mask": [1, 1]}, {}).first_user_text == "7 8"


def test_instances_become_a_row_each(tmp_path: Path) -> None:
    row = {
        "id": "s",
        "instruction": "add",
        "instances": [{"input": "1 1", "output": "2"}, {"input": "", "output": "?"}],
    }
    assert [said(dict(one)) for one in unfold(row)] == [
        [("user", "add\n1 1"), ("assistant", "2")],
        [("user", "add"), ("assistant", "?")],
    ]
    bad = {"id": "t", "instruction": "add", "instances": [{"input": "", "output": "5"}, {"input": "", "output": " "}]}
    alone = {"id": "u", "instruction": "add", "instances": [{"input": "", "output": "6"}]}
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, (row, bad, alone, {**alone, "id": "v", "instances": []}))))
    ingestion, conversations, rejected = take(path)
    assert [c.conversation_id for c in conversations] == ["s/0", "s/1", "t/0", "u"]
    assert [(r.conversation_id, r.line, r.reason) for r in rejected] == [
        ("t/1", 2, "empty_assistant"),
        (None, 4, "bad_instances"),
    ]
    assert ingestion.num_rows == 6


def test_fields_are_mapped() -> None:
    row = {"ask": "q", "say": "a", "be": "s", "functions": [{"name": "f"}]}
    mapped = read_turns(row, {"user": "ask", "assistant": "say", "system": "be", "tools": "functions"})
    assert [(m.role, m.content) for m in mapped.messages] == [("system", "s"), *QA]
    assert mapped.tools == '[{"name":"f"}]'
    assert said({"log": [USER, ANSWER], "messages": "not these"}, {"messages": "log"}) == QA
    assert read_turns({"question": "q", "answer": "a", "t": [{}]}, {"id": "key", "tools": "t"}).tools == "[{}]"


def test_an_id_may_lie_in_another_field(tmp_path: Path) -> None:
    from dflash_pipeline.ingest.sources import SourceFile

    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"task_id": "T/1", "id": "other", "question": "q", "answer": "a"}))
    _, [conversation], _ = take(SourceFile(path=path, mapping={"id": "task_id"}))
    assert conversation.conversation_id == "T/1"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": "q", "question": "q", "answer": "a"}, "ambiguous_fields"),
        ({"question": "q", "answer": "a", "response": "b"}, "ambiguous_fields"),
        ({"question": "q", "context": "c", "answer": "a"}, "ambiguous_fields"),
        ({"instruction": "q", "input": "c", "context": "d", "output": "a"}, "ambiguous_fields"),
        ({"prompt": "q", "text": "t"}, "ambiguous_fields"),
        ({"question": ["q"], "answer": "a"}, "unsupported_content"),
        ({"question": "q", "answer": 4}, "unsupported_content"),
        ({"question": "q", "answer": " "}, "empty_assistant"),
        ({"instruction": "q", "output": "a", "history": [["q"]]}, "bad_message"),
        ({"prompt": "q", "completion": "a", "system": 4}, "unsupported_content"),
        ({"question": "q"}, "prompt_without_answer"),
        ({"turns": ["q", 3]}, "unsupported_content"),
        ({"turns": []}, "no_messages"),
        ({"text": " \n"}, "empty_document"),
        ({"text": 5}, "unsupported_content"),
        ({"input_ids": [1, 2]}, "no_loss_mask"),
        ({"input_ids": [], "loss_mask": []}, "bad_tokens"),
        ({"input_ids": [1, -2], "loss_mask": [1, 1]}, "bad_tokens"),
        ({"input_ids": [1, 2.0], "loss_mask": [1, 1]}, "bad_tokens"),
        ({"input_ids": [1, 2**31], "loss_mask": [1, 1]}, "bad_tokens"),
        ({"input_ids": [1, 2], "loss_mask": [1]}, "bad_tokens"),
        ({"input_ids": [1, 2], "loss_mask": [1, 2]}, "bad_tokens"),
        ({"input_ids": [1, 2], "labels": [2, -100]}, "bad_tokens"),
        (
            {"conversations": [{"from": "human", "value": "q"}, {"from": "function_call", "value": "f()"}]},
            "bad_tool_calls",
        ),
        (
            {"conversations": [{"from": "human", "value": "q"}, {"from": "function_call", "value": "[]"}]},
            "bad_tool_calls",
        ),
        (
            {"messages": [USER, {**ANSWER, "tool_calls": [CALL], "content": [{"type": "tool_call", "value": CALL}]}]},
            "bad_tool_calls",
        ),
        (
            {
                "messages": [
                    USER,
                    {**ANSWER, "content": [{"type": "text", "text": "a"}, {"type": "reasoning", "text": "b"}]},
                ]
            },
            "unsupported_content",
        ),
        (
            {"messages": [USER, {**ANSWER, "content": [{"type": "text", "text": "a", "value": "b"}]}]},
            "unsupported_content",
        ),
        (
            {"messages": [USER, {**ANSWER, "reasoning": "x", "content": [{"type": "reasoning", "text": "b"}]}]},
            "unsupported_content",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "image", "url": "x"}]}, ANSWER]}, "unsupported_content"),
        ({"messages": [USER, ANSWER], "tools": "[not json"}, "bad_tools"),
        ({"messages": "[{"}, "no_messages"),
    ],
)
def test_reasons(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(RowError, match=f"^{reason}$"):
        read_turns(row, {})


def test_a_conversation_that_only_asks_can_be_answered() -> None:
    with pytest.raises(PromptOnly) as asked:
        read_turns({"messages": [USER, USER], "tools": [{}]}, {})
    turns = asked.value.turns
    assert [(m.role, m.content) for m in turns.messages] == [("user", "q"), ("assistant", "")] * 2
    assert turns.tools == "[{}]"
