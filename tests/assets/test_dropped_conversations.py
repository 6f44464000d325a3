"""What the page tells of the conversations behind a snapshot: distinct ones and dropped ones add up to all."""

from __future__ import annotations

import json
from pathlib import Path

import dagster as dg

from dflash_pipeline.assets.catalogue import definitions_for
from dflash_pipeline.assets.plan import epoch_range_tags
from dflash_pipeline.assets.resources import Workbench
from dflash_pipeline.recipe import load_recipe
from dflash_pipeline.store.layout import Storage
from tests.conftest import write_recipe

SELECTED = ("conversations", "target_responses", "token_sequences")


def test_repeated_and_left_out_conversations_add_up(tmp_path: Path) -> None:
    rows = [{"id": f"id{n}", "question": f"What is {n}?", "answer": "so " * 5} for n in range(30)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "more.jsonl").write_text('{"id": "more", "question": "Which?", "answer": "That one."}')
    sources = [{"path": "rows.jsonl", "weight": 0.5}, {"path": "more.jsonl", "weight": 3}]
    data = {"sources": sources, "max_rows": None}
    recipe = load_recipe(write_recipe(tmp_path / "recipe.yaml", data=data, responses={"enabled": False}))
    workbench = Workbench(recipe=recipe, storage=Storage(root=tmp_path / "storage"))
    with dg.DagsterInstance.ephemeral() as instance:
        result = (
            definitions_for(workbench)
            .resolve_job_def("whole_chain")
            .execute_in_process(
                instance=instance,
                tags=epoch_range_tags(2),
                asset_selection=[dg.AssetKey(name) for name in SELECTED],
            )
        )
    [materialization] = result.asset_materializations_for_node("token_sequences")
    metadata = materialization.metadata
    [record] = metadata["dropped_by_reason"].value.records  # type: ignore[union-attr]
    assert record.data["reason"] == "weight"
    left_out = record.data["conversations"]
    assert metadata["conversations"].value == 31 - left_out  # type: ignore[operator]
    assert 0 < left_out < 30  # type: ignore[operator]
    samples = metadata["training_samples"].value + metadata["validation_samples"].value  # type: ignore[operator]
    assert samples == metadata["conversations"].value + 2  # type: ignore[operator]
