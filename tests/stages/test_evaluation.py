"""Prompts are held out, exports are reused or set aside, and a report is measured once."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_pipeline.contracts.corpus import CorpusSnapshot
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.contracts.results import ExportedDrafter, TrainedDrafter
from dflash_pipeline.evaluation.acceptance import PromptAcceptance, combine_results
from dflash_pipeline.evaluation.prompts import Prompt
from dflash_pipeline.recipe import load_recipe
from dflash_pipeline.stages import acceptance
from dflash_pipeline.stages.acceptance import make_report, measured
from dflash_pipeline.stages.conversations import make_conversations
from dflash_pipeline.stages.export import make_export
from dflash_pipeline.store.files import folder_faults
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.records import load_record
from tests.conftest import write_recipe

EXPORT = ExportedDrafter(run="r", export_dir="", target_dir="", num_tensors=1)


def exported(folder: Path) -> ExportedDrafter:
    """Something with the files that a report is named by; nothing in this file decodes with it."""
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "config.json").write_text("{}")
    return replace(EXPORT, export_dir=str(folder))


def recipe_of(tmp_path: Path, *, validation_fraction: float, rows: list[dict]):
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"sources": [{"path": str(source)}], "max_rows": None, "validation_fraction": validation_fraction}
    return load_recipe(write_recipe(tmp_path / "recipe.yaml", data=data, evaluation={"num_prompts": 3}))


def conversation(number: int, **fields: object) -> dict:
    messages = [{"role": "user", "content": f"question {number}"}, {"role": "assistant", "content": "the answer"}]
    return {"id": f"c{number}", "messages": messages, **fields}


def test_without_anything_held_out_the_report_is_refused(tmp_path):
    storage = Storage(root=tmp_path / "storage")
    recipe = recipe_of(tmp_path, validation_fraction=0.0, rows=[conversation(n) for n in range(4)])
    ingestion = make_conversations(recipe, storage).record
    with pytest.raises(Refused, match=r"evaluation\.prompts: no conversation is held out"):
        make_report(recipe, storage, ingestion, exported(tmp_path / "export"))


def test_prompts_are_held_out_conversations_up_to_the_answer_with_their_tools(tmp_path, monkeypatch):
    storage = Storage(root=tmp_path / "storage")
    tool = {"type": "function", "function": {"name": "clock", "parameters": {}}}
    recipe = recipe_of(tmp_path, validation_fraction=0.5, rows=[conversation(n, tools=[tool]) for n in range(12)])
    # The example's own template knows no tools.
    template = tmp_path / "tools.jinja"
    template.write_text(
        "{% if tools %}TOOLS {{ tools | length }}\n{% endif %}"
        + (recipe.target.path / "chat_template.jinja").read_text()
    )
    recipe = recipe.model_copy(update={"target": recipe.target.model_copy(update={"chat_template": template})})
    ingestion = make_conversations(recipe, storage).record
    given: list[list[Prompt]] = []

    def measure(candidate, prompts, decoding, **settings):
        given.append(list(prompts))
        raise KeyboardInterrupt

    monkeypatch.setattr(acceptance, "measure_in_processes", measure)
    with pytest.raises(KeyboardInterrupt):
        make_report(recipe, storage, ingestion, exported(tmp_path / "export"))
    tokenizer = acceptance.ChatRenderer(recipe.target.path).tokenizer
    texts = [tokenizer.decode(prompt.ids) for prompt in given[0]]
    assert len(texts) == 3
    assert {prompt.source for prompt in given[0]} == {"rows.jsonl"}
    assert all("TOOLS 1" in text and "question" in text and "the answer" not in text for text in texts)


def test_a_damaged_export_is_set_aside_and_written_again_alike(chain, tmp_path):
    copy = chain.copy(tmp_path / "storage")
    snapshot = load_record(copy.storage.record("tiny", "token_sequences"), CorpusSnapshot)
    plan = load_record(copy.storage.record("tiny", "run_plan"), RunPlan)
    trained = load_record(copy.storage.record("tiny", "trained_drafter"), TrainedDrafter)
    out = copy.storage.exports / Path(chain.facts["export_dir"]).name
    assert make_export(copy.recipe, copy.storage, snapshot, plan, trained).reused
    weights = out / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    made = make_export(copy.recipe, copy.storage, snapshot, plan, trained)
    assert not made.reused
    assert made.record.export_dir == str(out)
    assert folder_faults(out) == []
    assert weights.read_bytes() == whole
    assert (out.with_name(f"{out.name}.damaged-1") / weights.name).read_bytes() != whole


def test_a_drafter_is_decoded_once_for_the_same_files_prompts_and_settings(tmp_path, monkeypatch):
    storage = Storage(root=tmp_path / "storage")
    recipe = recipe_of(tmp_path, validation_fraction=0.5, rows=[conversation(n) for n in range(12)])
    ingestion = make_conversations(recipe, storage).record
    asked: list[float] = []

    def measure(candidate, prompts, decoding, **settings):
        asked.append(decoding.choice.temperature)
        result = PromptAcceptance(
            source="a", prompt="p", prompt_tokens=3, num_tokens=4, histogram=(1, 1), cut_tokens=0, lossless=None
        )
        return combine_results([result], temperature=decoding.choice.temperature)

    monkeypatch.setattr(acceptance, "measure_in_processes", measure)
    folder = Path(exported(tmp_path / "export").export_dir)
    warm = recipe.model_copy(update={"evaluation": recipe.evaluation.model_copy(update={"temperature": 0.5})})
    wide = recipe.model_copy(update={"evaluation": recipe.evaluation.model_copy(update={"batch_size": 2})})
    first = measured(recipe, storage, ingestion, folder)
    assert measured(recipe, storage, ingestion, folder) == measured(wide, storage, ingestion, folder) == first
    assert asked == [0.0]
    assert measured(warm, storage, ingestion, folder).temperature == 0.5
    comparison = make_report(recipe, storage, ingestion, replace(EXPORT, export_dir=str(folder)))
    assert (comparison.reused, comparison.record.trained, comparison.record.estimate) == (False, first, None)
    assert asked == [0.0, 0.5, 0.0]
    assert make_report(recipe, storage, ingestion, replace(EXPORT, export_dir=str(folder))).reused
    (folder / "model.safetensors").write_bytes(b"others")
    measured(recipe, storage, ingestion, folder)
    assert asked == [0.0, 0.5, 0.0, 0.0]
