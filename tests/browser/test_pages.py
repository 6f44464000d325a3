"""What a person sees after `dflash run` and `dflash ui`."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.browser.conftest import Pages

pytestmark = pytest.mark.browser

GROUPS = ("data", "batching", "training", "evaluation")
ASSETS = {
    *(
        "conversations",
        "target_responses",
        "token_sequences",
        "length_statistics",
        "bucket_boundaries",
        "batching_forecast",
    ),
    *("epoch_manifest", "run_plan", "trained_drafter", "exported_drafter", "acceptance_report"),
    *("champion", "run_comparison"),
}
STATUS = """{ assetNodes { assetKey { path } groupName description
  assetMaterializations(limit: 1) { runId } assetChecksOrError { ... on AssetChecks { checks { name } } } } }"""


def visit(page: Any, address: str) -> None:
    # The community's greeting comes when it likes, and covers everything.
    page.add_locator_handler(page.get_by_text("Skip", exact=True), lambda skip: skip.click())
    page.goto(address)


def test_lineage_shows_the_four_groups_and_every_asset_materialised(pages: Pages, page: Any):
    visit(page, pages.dagster)
    for group in GROUPS:
        page.get_by_text(group, exact=True).first.wait_for()
    answer = page.request.post(f"{root(pages.dagster)}/graphql", data={"query": STATUS}).json()
    nodes = {node["assetKey"]["path"][-1]: node for node in answer["data"]["assetNodes"]}
    assert nodes.keys() == ASSETS
    assert {node["groupName"] for node in nodes.values()} == set(GROUPS)
    assert [name for name, node in nodes.items() if not node["assetMaterializations"]] == []
    assert [name for name, node in nodes.items() if not node["description"]] == []


def test_the_length_histogram_opens_as_a_picture(pages: Pages, page: Any):
    visit(page, f"{root(pages.dagster)}/assets/length_statistics")
    page.get_by_text("[Show Markdown]").click()
    picture = page.locator("img[alt=lengths]")
    picture.wait_for()
    page.wait_for_function("document.querySelector('img[alt=lengths]').naturalWidth > 300")


def test_the_schedule_is_there_and_off(pages: Pages, page: Any):
    visit(page, f"{root(pages.dagster)}/automation")
    page.get_by_text("nightly_retraining").first.wait_for()
    assert page.locator("input[type=checkbox]:checked").count() == 0


def test_mlflow_opens_at_the_curves_of_the_run(pages: Pages, page: Any, chain: Any):
    page.goto(pages.mlflow)
    page.get_by_text(re.compile(chain.facts["run"][:12])).first.wait_for()
    for text in ("epoch/num_steps", "progress", "train"):
        page.get_by_text(text, exact=True).first.wait_for()


def test_mlflow_shows_the_metrics_and_the_plan_of_the_run(pages: Pages, page: Any, chain: Any):
    page.goto(f"{root(pages.mlflow)}/#/experiments/1/runs/{chain.facts['mlflow_run_id']}")
    for text in ("train/loss", "progress/run", chain.facts["plan"], chain.facts["snapshot"]):
        page.get_by_text(text).first.wait_for()


def root(address: str) -> str:
    return "/".join(address.split("/")[:3])
