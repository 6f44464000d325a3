"""The launchpad, a run's page and a check's page, used as a person does."""

from __future__ import annotations

import re
import shutil
from typing import Any

import pytest

from dflash_pipeline.contracts.results import TrainedDrafter
from dflash_pipeline.recipe.choices import CHOICES, setting
from dflash_pipeline.store.records import load_record
from tests.browser.conftest import Picture, Worked
from tests.browser.walk import ENDED, ask, launch, open_launchpad, root, visit

pytestmark = [pytest.mark.browser, pytest.mark.slow]
SHOWN = 80
"""Letters of a sentence that the list of hints has room for."""
RUNS = "{ runsOrError { ... on Runs { results { runId status } } } }"


def test_the_form_lists_the_choices_with_their_sentences(worked: Worked, page: Any, picture: Picture):
    open_launchpad(page, worked.pages.dagster, "")
    page.keyboard.press("Control+Space")
    hints = page.locator(".CodeMirror-hints", has_text="epochs")
    hints.wait_for()
    listed = " ".join(hints.inner_text().split())
    sentences = [f"{name} {(setting(worked.chain.recipe, name).description or '')[:SHOWN]}" for name in CHOICES]
    assert [sentence for sentence in sentences if sentence not in listed] == []
    picture("launchpad")


def test_a_wrong_value_is_refused_before_there_is_a_run(worked: Worked, page: Any, picture: Picture):
    before = ask(page, worked.pages.dagster, RUNS)
    open_launchpad(page, worked.pages.dagster, "epochs: 65")
    launch(page)
    page.get_by_text(re.compile(r"batching\.epochs: input should be less than or equal to 64, not 65")).first.wait_for()
    picture("launchpad-refused", above="Stack Trace:")
    assert ask(page, worked.pages.dagster, RUNS) == before


def test_a_run_is_started_with_another_value_and_watched_to_its_end(worked: Worked, page: Any, picture: Picture):
    open_launchpad(page, worked.pages.dagster, "epochs: 1")
    launch(page)
    page.wait_for_url("**/runs/*")
    page.get_by_text("Success", exact=True).first.wait_for(timeout=ENDED)
    page.get_by_text("RUN_SUCCESS").wait_for()
    picture("run")
    made = worked.chain.storage.run_record(page.url.rpartition("/")[2], "trained_drafter")
    [first, *_] = worked.chain.facts["epochs"]
    assert load_record(made, TrainedDrafter).total_steps == first["num_steps"]


def test_a_failed_check_says_what_is_wrong(worked: Worked, page: Any, picture: Picture):
    """The second epoch's manifest lies where the first one's belongs, as after a mistaken copy."""
    first, second = sorted(worked.chain.storage.plans.glob("*/epoch-*.parquet"))
    kept = first.read_bytes()
    visit(page, f"{root(worked.pages.dagster)}/assets/run_plan?view=checks")
    page.get_by_role("button", name="Execute all").wait_for()
    shutil.copyfile(second, first)
    try:
        page.get_by_role("button", name="Execute all").click()
        page.get_by_text("Launched run").wait_for()
        page.get_by_text("it holds epoch 1; make it again as it was made").first.wait_for(timeout=ENDED)
        page.get_by_text("Launched run").wait_for(state="hidden")
    finally:
        first.write_bytes(kept)
    assert page.get_by_text("Failed", exact=True).count() >= 3
    picture("failed-check")
