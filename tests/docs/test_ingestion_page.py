"""The page on ingestion names every reason, format and limit that there is."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from dflash_pipeline.contracts.conversation import Reason
from dflash_pipeline.ingest.limits import Limits
from dflash_pipeline.ingest.shapes import CHAT_FIELDS, PROMPT_FIELDS
from dflash_pipeline.recipe import Data, Format, Mapped
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "ingestion.md").read_text(encoding="utf-8")
MARKED = set(re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)))


@pytest.mark.parametrize("names", [get_args(Reason), get_args(Format), get_args(Mapped), CHAT_FIELDS, PROMPT_FIELDS])
def test_every_name_is_explained(names: tuple[str, ...]) -> None:
    assert set(names) - MARKED == set()


def test_limits_are_those_of_the_recipe() -> None:
    fields = Data.model_fields
    defaults = {
        name: fields[f"max_{name}"].default for name in ("row_bytes", "depth", "unpacked_bytes", "unpacked_ratio")
    }
    assert Limits(**defaults) == Limits()
    assert {f"data.max_{name}" for name in defaults} <= MARKED
