"""The thinking mode: asked for in one place, part of a snapshot's identity and record, and never mixed unawares."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dflash_pipeline.contracts.corpus import CorpusSnapshot
from dflash_pipeline.contracts.errors import ContractBroken, Refused
from dflash_pipeline.model.answers import Answer
from dflash_pipeline.recipe import Recipe, load_recipe
from dflash_pipeline.stages import responses
from dflash_pipeline.stages.acceptance import report_prompts
from dflash_pipeline.stages.conversations import make_conversations
from dflash_pipeline.stages.ingest_files import IngestRequest, ingest_files
from dflash_pipeline.stages.preflight.target import read_target
from dflash_pipeline.stages.responses import conversations_with_answers, make_responses
from dflash_pipeline.stages.tokens import make_snapshot
from dflash_pipeline.store.layout import Storage
from tests.answering.served import MODEL, Say, serving
from tests.conftest import ROOT, write_recipe

# As Qwen3's: the mode is told to the generation prompt alone.
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
OPENING = TEMPLATE.replace(
    "{% if enable_thinking is defined", "{% if enable_thinking %}<think>\n{% endif %}{% if enable_thinking is defined"
)
"""As Qwen3-Thinking's: the generation prompt opens the thought."""


def row(n: int, thought: str | None = None) -> dict[str, Any]:
    answer = {"role": "assistant", "content": f"answer {n}"} | ({"reasoning_content": thought} if thought else {})
    return {"id": f"c{n}", "messages": [{"role": "user", "content": f"question {n}"}, answer]}


PLAIN, THOUGHTS = [row(n) for n in range(6)], [row(n, f"thought {n}") for n in range(6)]


class Bench:
    def __init__(self, folder: Path) -> None:
        self.folder, self.storage = folder, Storage(root=folder / "storage")
        self.template = TEMPLATE

    def recipe(self, rows: list[dict[str, Any]], thinking: Any = "template", **sections: Any) -> Recipe:
        (self.folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (self.folder / "template.jinja").write_text(self.template)
        return load_recipe(
            write_recipe(
                self.folder / "recipe.yaml",
                data={
                    "sources": [{"path": str(self.folder / "rows.jsonl")}],
                    "max_rows": None,
                    **sections.pop("data", {}),
                },
                target={"thinking": thinking, "chat_template": str(self.folder / "template.jinja")},
                **{"responses": {"enabled": False}, **sections},
            )
        )

    def snapshot(self, recipe: Recipe) -> CorpusSnapshot:
        ingestion = make_conversations(recipe, self.storage).record
        answers = make_responses(recipe, self.storage, ingestion).record
        return make_snapshot(recipe, self.storage, ingestion, answers).record


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize(("written", "mode"), [("on", True), (True, True), ("off", False), ("template", None)])
def test_on_and_off_are_words_though_yaml_has_other_ideas(bench, written, mode):
    assert bench.recipe(PLAIN, written).target.enable_thinking is mode
    assert load_recipe(bench.folder / "recipe.yaml", ["target.thinking=off"]).target.thinking == "off"


@pytest.mark.parametrize(
    ("rows", "mode", "count"),
    [(PLAIN, "non-thinking", 0), (THOUGHTS, "thinking", 6), ([{"text": "a book"}, {"text": "two"}], "unknown", 0)],
)
def test_a_snapshot_tells_the_mode_of_its_answers(bench, rows, mode, count):
    snapshot = bench.snapshot(bench.recipe(rows))
    assert (snapshot.thinking, snapshot.num_thinking_samples) == (mode, count)


def test_a_mix_is_refused_with_counts_unless_the_recipe_says_so(bench):
    mixed = [*PLAIN[:2], *THOUGHTS[2:]]
    for _ in range(2):  # Made, and found again.
        with pytest.raises(Refused) as refused:
            bench.snapshot(bench.recipe(mixed))
        assert "the answers of 4 samples hold thoughts, those of 2 none" in refused.value.what
        assert "data.thinking" in refused.value.fix
    allowed = bench.snapshot(bench.recipe(mixed, data={"thinking": "mixed"}))
    assert (allowed.thinking, allowed.num_thinking_samples) == ("mixed", 4)


def test_the_mode_asked_for_is_part_of_the_identity(bench):
    """The same rows, and the same text of each: still not the same snapshot."""
    mixed = {"thinking": "mixed"}
    names = {bench.snapshot(bench.recipe(PLAIN, m, data=mixed)).fingerprint for m in ("template", "on", "off")}
    assert len(names) == 3


@pytest.mark.parametrize(("mode", "fits", "contradicts"), [("on", THOUGHTS, PLAIN), ("off", PLAIN, THOUGHTS)])
def test_answers_that_contradict_the_mode_asked_for_are_refused(bench, mode, fits, contradicts):
    bench.snapshot(bench.recipe(fits, mode))
    with pytest.raises(Refused, match=f"target.thinking is {mode}: more than one mode"):
        bench.snapshot(bench.recipe(contradicts, mode))
    bench.snapshot(bench.recipe([{"text": "a book"}], mode))


def test_rows_may_be_looked_at_in_any_mode(bench):
    bench.recipe([*PLAIN[:2], *THOUGHTS[2:]])
    request = IngestRequest(
        sources=(bench.folder / "rows.jsonl",),
        tokenizer=ROOT / "examples" / "target",
        chat_template=bench.folder / "template.jinja",
        mapping={},
        format=None,
        supervise="all",
        max_length=100,
        overlong="truncate",
        max_row_bytes=1000,
    )
    assert ingest_files(request, bench.storage.root, known={})["num_samples"] == 6


def test_prompts_to_answer_and_prompts_to_measure_on_are_asked_in_the_mode(bench, monkeypatch):
    asked: list[str] = []

    def speak(model: object, tokenizer: object, prompts: list[str], settings: object) -> list[Answer]:
        asked.extend(prompts)
        return [Answer(text="4", complete=True) for _ in prompts]

    monkeypatch.setattr(responses, "load_causal_lm", lambda path, *, device: None)
    monkeypatch.setattr(responses, "answer_prompts", speak)
    # Held out, so that there is something to measure on; the file of prompts is read by the same renderer.
    recipe = bench.recipe(PLAIN, "off", responses={"enabled": True}, data={"validation_fraction": 0.5})
    bench.snapshot(recipe)
    assert len(asked) == 6
    assert all(prompt.endswith("assistant\n<think>\n\n</think>\n\n") for prompt in asked)
    [prompts] = [report_prompts(recipe, bench.storage, make_conversations(recipe, bench.storage).record)]
    tokenizer = responses.open_cache(recipe, bench.storage).renderer.tokenizer
    assert {tokenizer.decode(prompt.ids) for prompt in prompts} <= set(asked)


def test_a_thought_that_the_prompt_opens_is_the_answers(bench):
    """What comes back lacks the tag: with it, the snapshot holds what the target saw and wrote."""
    bench.template = OPENING
    texts = {"0": "cut in", "1": "two\n</think>\n\n4"}

    def script(prompt: str, _: int) -> Say:
        number = prompt.split("question ")[1][0]
        return Say(text=texts.get(number, "hm\n</think>\n\n5"), ended="length" if number == "0" else "stop")

    def read(body: dict[str, Any]) -> str:
        return str(tokenizer.decode(body["prompt"]))

    with serving(script, read) as served:
        endpoint = {"url": served.url, "model": MODEL}
        recipe = bench.recipe(PLAIN[:3], "on", responses={"enabled": True, "endpoint": endpoint})
        tokenizer = responses.open_cache(recipe, bench.storage).renderer.tokenizer
        ingestion = make_conversations(recipe, bench.storage).record
        made = make_responses(recipe, bench.storage, ingestion).record
    assert made.left_out == (("cut_in_thought", 1),)
    found = conversations_with_answers(recipe, bench.storage, ingestion, made)
    assert {c.conversation_id: c.messages[1].content for c in found} == {
        "c1": "<think>\ntwo\n</think>\n\n4",
        "c2": "<think>\nhm\n</think>\n\n5",
    }
    assert bench.snapshot(recipe).thinking == "thinking"


@pytest.mark.parametrize("mode", ["on", "off"])
def test_a_template_that_knows_no_mode_is_refused_before_work_starts(bench, mode):
    recipe = load_recipe(ROOT / "recipes" / "demo.yaml", [f"target.thinking={mode}"])
    [fault] = read_target(recipe).faults
    assert "in the same words with thinking on and off" in fault.what
    assert "leave target.thinking out" in fault.fix


def test_counts_and_mode_agree(bench):
    good = bench.snapshot(bench.recipe(PLAIN))
    for change in ({"thinking": "thinking"}, {"num_thinking_samples": 1}, {"thinking": "mixed"}):
        with pytest.raises(ContractBroken, match="samples think in a"):
            CorpusSnapshot(**{**{n: getattr(good, n) for n in good.__slots__}, **change})
