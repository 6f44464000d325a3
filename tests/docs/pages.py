"""The repository's own pages: which there are, and what is code in them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "examples", "recipes", "bench", "tests")
_FENCE = re.compile(r"^(```+)(\w*)[^\n]*\n(.*?)^\1[ ]*$", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    """Every Markdown file that is ours."""
    below = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))
    return sorted([*ROOT.glob("*.md"), *below])


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def without_code_blocks(text: str) -> str:
    return _FENCE.sub("", text)


def code_blocks(text: str, language: str) -> list[str]:
    return [block for _, found, block in _FENCE.findall(text) if found == language]
