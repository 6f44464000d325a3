"""What the page tells of rejected rows, and when so many of them stop the chain."""

from __future__ import annotations

import json
from pathlib import Path

import dagster as dg
import pytest

from dflash_pipeline.assets.catalogue import definitions_for
from dflash_pipeline.assets.plan import epoch_range_tags
from dflash_pipeline.assets.resources import Workbench
from dflash_pipeline.recipe import load_recipe
from dflash_pipeline.store.layout import Storage
from tests.conftest import write_recipe


def rows(folder: Path, name: str, *, good: int, bad: int = 0, prompts: int = 0) -> dict[str, str]:
    listed = [{"question": f"{name} {n}", "answer": "a"} for n in range(good)]
    listed += [{"question": n, "answer": "a"} for n in range(bad)]
    listed += [{"question": f"{name} to answer {n}"} for n in range(prompts)]
    (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, listed)))
    return {"path": f"{name}.jsonl"}


def run(folder: Path, sources: list[dict[str, str]], *, answers: bool = False) -> dg.ExecuteInProcessResult:
    recipe = load_recipe(
        write_recipe(
            folder / "recipe.yaml",
            data={"sources": sources, "max_rows": None, "rejection_warn": 0.1, "rejection_block": 0.4},
            responses={"enabled": answers},
        )
    )
    workbench = Workbench(recipe=recipe, storage=Storage(root=folder / "storage"))
    selected = ["conversations"] if answers else ["conversations", "target_responses"]
    with dg.DagsterInstance.ephemeral() as instance:
        return (
            definitions_for(workbench)
            .resolve_job_def("whole_chain")
            .execute_in_process(
                instance=instance,
                tags=epoch_range_tags(2),
                asset_selection=[dg.AssetKey(name) for name in selected],
                raise_on_error=False,
            )
        )


def judged(result: dg.ExecuteInProcessResult) -> tuple[bool, str, str]:
    [evaluation] = [e for e in result.get_asset_check_evaluations() if e.check_name == "few_rows_rejected"]
    return evaluation.passed, evaluation.severity.value, evaluation.description or ""


@pytest.mark.parametrize(
    ("good", "bad", "passed", "severity", "goes_on"),
    # Of the last, preflight sees the first rows, which are good.
    [(9, 1, True, "WARN", True), (8, 2, False, "WARN", True), (70, 70, False, "ERROR", False)],
)
def test_a_share_of_rejected_rows_warns_and_a_larger_one_stops(
    tmp_path: Path, good: int, bad: int, passed: bool, severity: str, goes_on: bool
) -> None:
    result = run(tmp_path, [rows(tmp_path, "a", good=good, bad=bad)])
    assert judged(result) == (passed, severity, f"{bad} of {good + bad} rows rejected ({bad / (good + bad):.1%})")
    assert result.success == goes_on
    started = {event.step_key for event in result.all_events if event.is_step_start}
    assert ("target_responses" in started) == goes_on


def test_a_file_that_is_not_taken_is_warned_of(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    rows(folder, "a", good=10)
    (folder / "b.json").write_text("[")
    result = run(tmp_path, [{"path": "rows"}])
    passed, severity, seen = judged(result)
    assert (passed, severity) == (False, "WARN")
    assert "b.json" in seen


@pytest.mark.parametrize(("answers", "expected"), [(True, (True, "WARN")), (False, (False, "ERROR"))])
def test_prompts_count_as_lost_only_if_nobody_answers_them(
    tmp_path: Path, answers: bool, expected: tuple[bool, str]
) -> None:
    # More than preflight reads are good, so that this check is the one to judge.
    result = run(tmp_path, [rows(tmp_path, "a", good=70, prompts=630)], answers=answers)
    assert judged(result)[:2] == expected


def test_the_page_tells_rejections_by_source_and_reason_with_a_sample(tmp_path: Path) -> None:
    sources = [rows(tmp_path, "a", good=90, bad=4), rows(tmp_path, "b", good=9, prompts=2)]
    result = run(tmp_path, sources)
    [materialization] = result.asset_materializations_for_node("conversations")
    metadata = materialization.metadata

    def listed(name: str) -> list[tuple[object, ...]]:
        return [tuple(record.data.values()) for record in metadata[name].value.records]  # type: ignore[union-attr]

    by_source = [(Path(str(file)).name, reason, number) for file, reason, number in listed("rejections_by_source")]
    assert by_source == [
        ("a.jsonl", "unsupported_content", 4),
        ("b.jsonl", "prompt_without_answer", 2),
    ]
    assert listed("rejections_by_reason") == [("prompt_without_answer", 2), ("unsupported_content", 4)]
    assert [(line, reason) for _, line, _, _, reason, _ in listed("rejected_sample")] == [
        *((n, "unsupported_content") for n in (91, 92, 93)),
        *((n, "prompt_without_answer") for n in (10, 11)),
    ]
    assert metadata["prompts_to_answer"].value == 2
