"""What a person does on Dagster's pages, for tests: go somewhere, fill in the launchpad, start a run."""

from __future__ import annotations

import re
from typing import Any

JOB = "locations/dflash_pipeline.assets.definitions/jobs/whole_chain"
ENDED = 240_000
"""Milliseconds that a run may take on a machine that does other things too."""


def root(address: str) -> str:
    return "/".join(address.split("/")[:3])


def visit(page: Any, address: str) -> None:
    # The community's greeting comes when it likes, and covers everything.
    page.add_locator_handler(page.get_by_text("Skip", exact=True), lambda skip: skip.click())
    page.goto(address)


def ask(page: Any, dagster: str, query: str) -> Any:
    """The `data` of a GraphQL answer: what the page itself was told."""
    answer = page.request.post(f"{root(dagster)}/graphql", data={"query": query}).json()
    assert "errors" not in answer, answer["errors"]
    return answer["data"]


def open_launchpad(page: Any, dagster: str, *settings: str) -> None:
    """The form of whole_chain with these lines, and nothing else, below resources.workbench."""
    visit(page, f"{root(dagster)}/{JOB}")
    everything = page.get_by_role("button", name="Materialize all")
    everything.wait_for()
    everything.locator("xpath=following::button[1]").click()
    page.get_by_text("Open launchpad").click()
    form = launchpad(page)
    form.get_by_text("All defaults expanded").wait_for()
    form.locator(".CodeMirror-lines").first.click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text("\n      ".join(["resources:\n  workbench:\n    config:", *settings]))


def launchpad(page: Any) -> Any:
    return page.get_by_role("dialog").filter(has_text="Launchpad (configure assets)")


def launch(page: Any) -> None:
    """Start what the form says. The epochs come from the recipe, so that no partition is chosen."""
    form = launchpad(page)
    form.get_by_text("Resources", exact=True).click()
    form.get_by_role("button", name=re.compile("Materialize$")).click()
    page.get_by_role("button", name="Confirm").click()


def close_assistant(page: Any) -> None:
    """MLflow opens beside everything a panel that wants to talk."""
    page.get_by_role("button", name="Close", exact=True).first.click()
