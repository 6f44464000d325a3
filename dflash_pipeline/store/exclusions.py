"""Samples that a person has taken out: `exclusions.jsonl` in the storage folder, a JSON object with an `id` a line."""

from __future__ import annotations

import json
from pathlib import Path

from dflash_pipeline.contracts.errors import Refused


def read_exclusions(path: Path) -> frozenset[str]:
    """The conversation ids that are taken out; none when there is no such file."""
    if not path.exists():
        return frozenset()
    return frozenset(
        _id(line, f"{path} line {number}")
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1)
        if line.strip()
    )


def _id(line: str, where: str) -> str:
    fix = 'write lines such as {"id": "some-conversation", "why": "a reason of your own"}'
    try:
        value = json.loads(line)
    except ValueError as error:
        raise Refused(f"not JSON: {error}", where=where, fix=fix) from None
    given = value.get("id") if isinstance(value, dict) else None
    if not isinstance(given, str) or not given:
        raise Refused("no text under the key `id`", where=where, fix=fix)
    return given
