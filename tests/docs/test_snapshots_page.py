"""The page on snapshots names every reason for which a conversation gives no sample."""

from __future__ import annotations

import re
from typing import get_args

from dflash_pipeline.contracts.sample import DropReason
from dflash_pipeline.recipe import Source
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "snapshots.md").read_text(encoding="utf-8")


def test_every_reason_is_explained() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    explained = {name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}
    assert set(get_args(DropReason)) - explained == set()


def test_bounds_of_a_weight_are_those_of_the_recipe() -> None:
    bounds = {type(bound).__name__: bound for bound in Source.model_fields["weight"].metadata}
    assert (bounds["Gt"].gt, bounds["Le"].le) == (0, 100)
    assert "A weight is above 0 and at most 100." in PAGE
