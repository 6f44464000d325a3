"""`dflash ui` on a recipe with rows of its own, its schedule at every minute: page, daemon and MLflow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dflash_pipeline.store.layout import Storage
from tests.browser.conftest import served
from tests.conftest import ROOT, Chain, write_recipe
from tests.daemon.page import Page

NUM_ROWS = 32


@dataclass(frozen=True, kw_only=True)
class Site:
    """The page that a person would use, and what stands behind it."""

    page: Page
    chain: Chain
    source: Path

    def write_rows(self, number: int) -> None:
        """The first rows of the examples, as the recipe's source."""
        rows = (ROOT / "examples" / "conversations" / "gsm8k_train.jsonl").read_text().splitlines()
        self.source.write_text("\n".join(rows[:number]) + "\n")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    source = folder / "rows.jsonl"
    sources = [{"path": str(source), "map": {"user": "question", "assistant": "answer"}}]
    recipe = write_recipe(
        folder / "tiny.yaml", data={"sources": sources}, schedule={"cron": "* * * * *", "settle_minutes": 0}
    )
    chain = Chain(recipe_file=recipe, storage=Storage(root=folder / "storage"), facts={})
    with served(chain, "--dagster-port", "23500", "--mlflow-port", "23500") as pages:
        made = Site(page=Page(pages.dagster), chain=chain, source=source)
        made.write_rows(NUM_ROWS)
        yield made
