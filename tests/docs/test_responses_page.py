"""The page on answers names every reason why a prompt has none, and every setting of a server with its default."""

from __future__ import annotations

import re
from typing import get_args

from dflash_pipeline.contracts.results import FAILURES, NoAnswer
from dflash_pipeline.recipe import Endpoint
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "responses.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| `")]


def test_every_reason_is_explained_and_what_comes_of_it() -> None:
    said = {row[0].strip("`"): row[2] for row in ROWS if row[0].strip("`") in get_args(NoAnswer)}
    assert said.keys() == set(get_args(NoAnswer))
    assert {reason for reason, next_run in said.items() if next_run == "asked again"} == set(FAILURES)


def test_every_setting_is_listed_with_its_default() -> None:
    listed = {}
    for row in ROWS:
        names = re.findall(r"`(\w+)`", row[0])
        listed |= dict(zip(names, row[1].split(", "), strict=False)) if names[0] in Endpoint.model_fields else {}
    assert listed.keys() == Endpoint.model_fields.keys()
    for name, setting in Endpoint.model_fields.items():
        default = {True: "", False: f"{setting.default:g}" if isinstance(setting.default, float) else setting.default}
        expected = "none" if setting.default is None else str(default[setting.is_required()])
        assert listed[name].strip("`") == expected
