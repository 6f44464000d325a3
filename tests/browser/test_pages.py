"""What a person sees after `dflash run` and `dflash ui`."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.browser.conftest import Pages, Picture
from tests.browser.walk import ask, root, visit

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
PICTURED = ("length_statistics", "bucket_boundaries", "epoch_manifest", "trained_drafter")
STATUS = """{ assetNodes { assetKey { path } groupName description staleStatus
  assetMaterializations(limit: 1) { runId }
  assetChecksOrError { ... on AssetChecks { checks { name executionForLatestMaterialization { status } } } } } }"""


def test_lineage_shows_the_four_groups_and_every_asset_materialised(pages: Pages, page: Any, picture: Picture):
    visit(page, pages.dagster)
    for group in GROUPS:
        page.get_by_text(group, exact=True).first.wait_for()
    page.get_by_role("button", name="Hide navigation").click()
    page.get_by_placeholder("Jump to").locator("xpath=following::button[1]").click()
    page.keyboard.press("Alt+E")
    for name in ASSETS:
        page.get_by_text(name, exact=True).first.wait_for()
    page.wait_for_load_state("networkidle")
    picture("lineage")
    for word in ("Failed", "Overdue", "Never materialized", "Unsynced"):
        assert page.get_by_text(word, exact=True).count() == 0
    nodes = {node["assetKey"]["path"][-1]: node for node in ask(page, pages.dagster, STATUS)["assetNodes"]}
    assert nodes.keys() == ASSETS
    assert {node["groupName"] for node in nodes.values()} == set(GROUPS)
    assert [name for name, node in nodes.items() if not node["assetMaterializations"]] == []
    assert [name for name, node in nodes.items() if not node["description"]] == []
    assert [name for name, node in nodes.items() if node["staleStatus"] not in (None, "FRESH")] == []
    checks = [check for node in nodes.values() for check in node["assetChecksOrError"].get("checks", ())]
    assert {check["executionForLatestMaterialization"]["status"] for check in checks} == {"SUCCEEDED"}


@pytest.mark.parametrize("asset", PICTURED)
def test_a_plot_opens_as_a_picture(asset: str, pages: Pages, page: Any, picture: Picture):
    visit(page, f"{root(pages.dagster)}/assets/{asset}")
    page.get_by_text("[Show Markdown]").first.click()
    drawn = page.locator("[role=dialog] img, .bp5-dialog img, .bp4-dialog img").first
    drawn.wait_for()
    page.wait_for_function("drawn => drawn.naturalWidth > 300", arg=drawn.element_handle())
    if asset == "bucket_boundaries":
        picture("plot")


def test_the_numbers_of_the_epochs_are_plotted_over_them(pages: Pages, page: Any, picture: Picture):
    visit(page, f"{root(pages.dagster)}/assets/epoch_manifest?view=overview")
    page.get_by_role("button", name="Plots").click()
    for name in ("fillers", "padding_efficiency", "steps"):
        page.get_by_text(name, exact=True).first.wait_for()
    page.locator("canvas").first.wait_for()
    picture("epochs")


@pytest.mark.slow
def test_no_page_of_an_asset_stumbles_over_what_it_is_told(pages: Pages, page: Any):
    """A number that is none is no JSON, and blanks the page."""
    stumbles: list[str] = []
    page.on("pageerror", lambda error: stumbles.append(str(error)))
    page.on("console", lambda message: stumbles.append(message.text) if message.type == "error" else None)
    for asset in sorted(ASSETS):
        visit(page, f"{root(pages.dagster)}/assets/{asset}?view=overview")
        page.get_by_text("Latest materialization").first.wait_for()
        page.get_by_text("Metadata", exact=True).first.wait_for()
    assert stumbles == []


def test_schedule_and_sensor_are_off_and_say_what_they_do(pages: Pages, page: Any):
    visit(page, f"{root(pages.dagster)}/automation")
    page.get_by_text("new_data_or_target").first.wait_for()
    page.get_by_text("nightly_retraining").first.wait_for()
    assert page.locator("input[type=checkbox]:checked").count() == 0
    page.get_by_text("nightly_retraining").first.click()
    page.get_by_text("Runs the whole chain at the recipe's time.").first.wait_for()
    page.go_back()
    page.get_by_text("new_data_or_target").first.click()
    page.get_by_text("Looks every minute at names, sizes and times of the sources").first.wait_for()


def test_mlflow_opens_at_the_curves_of_the_run(pages: Pages, page: Any, chain: Any):
    page.goto(pages.mlflow)
    page.get_by_text(re.compile(chain.facts["run"][:12])).first.wait_for()
    for text in ("epoch/num_steps", "progress", "train"):
        page.get_by_text(text, exact=True).first.wait_for()


def test_mlflow_shows_the_metrics_and_the_plan_of_the_run(pages: Pages, page: Any, chain: Any):
    page.goto(f"{root(pages.mlflow)}/#/experiments/1/runs/{chain.facts['mlflow_run_id']}")
    for text in ("train/loss", "progress/run", chain.facts["plan"], chain.facts["snapshot"]):
        page.get_by_text(text).first.wait_for()
