"""Rows that came without an answer get the target's, and are conversations from then on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from dflash_pipeline.model.answers import Answer
from dflash_pipeline.recipe import load_recipe
from dflash_pipeline.stages import responses
from dflash_pipeline.stages.conversations import make_conversations
from dflash_pipeline.stages.responses import conversations_with_answers, make_responses
from dflash_pipeline.store.layout import Storage
from tests.conftest import write_recipe

ROWS = [
    {"id": "b", "turns": ["one", "two"]},
    {"id": "c", "prompt": "mute"},
    {"id": "a", "question": "q", "answer": "of the file"},
    {"id": "d", "text": "a document"},
]


def speak(model: object, tokenizer: object, prompts: Sequence[str], settings: object) -> list[Answer]:
    return [
        Answer(text="" if "mute" in prompt else f"answer {prompt.count('one')}", complete=True) for prompt in prompts
    ]


@pytest.mark.parametrize("answered", [True, False])
def test_prompts_are_answered_turn_by_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answered: bool) -> None:
    monkeypatch.setattr(responses, "load_causal_lm", lambda path, *, device: None)
    monkeypatch.setattr(responses, "answer_prompts", speak)
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    data = {"sources": [{"path": "rows.jsonl"}], "max_rows": None}
    recipe = load_recipe(write_recipe(tmp_path / "recipe.yaml", data=data, responses={"enabled": answered}))
    storage = Storage(root=tmp_path / "storage")
    ingestion = make_conversations(recipe, storage).record
    answers = make_responses(recipe, storage, ingestion).record
    found = conversations_with_answers(recipe, storage, ingestion, answers)
    said = {c.conversation_id: c.document or [m.content for m in c.messages] for c in found}
    if answered:
        assert said == {"a": ["q", "answer 0"], "b": ["one", "answer 1", "two", "answer 1"], "d": "a document"}
        assert (answers.num_answers, answers.num_empty) == (3, 1)
    else:
        assert said == {"a": ["q", "of the file"], "d": "a document"}
