"""Samples that a person has taken out: `exclusions.jsonl` in the storage folder, a JSON object with an `id` a line."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.store.files import write_atomic


def read_exclusions(path: Path) -> frozenset[str]:
    """The conversation ids that are taken out; none when there is no such file."""
    return frozenset(name for name, _ in _entries(path))


def add_exclusions(path: Path, reasons: Mapping[str, str]) -> tuple[str, ...]:
    """Conversation ids, each with why, put on the list; those that were not on it, in the order given.

    The file is replaced whole, with every line that it had. One process changes it at a time.
    """
    added: list[str] = []

    def change(entries: list[tuple[str, str]]) -> list[str]:
        known = {name for name, _ in entries}
        added.extend(name for name in reasons if name not in known)
        new = [{"id": name} | ({"why": reasons[name]} if reasons[name] else {}) for name in added]
        return [line for _, line in entries] + [json.dumps(entry, ensure_ascii=False) for entry in new]

    _change(path, change)
    return tuple(added)


def remove_exclusions(path: Path, ids: Iterable[str]) -> tuple[str, ...]:
    """Takes ids off the list; those that were on it, in the order of the list."""
    wanted, removed = frozenset(ids), dict[str, None]()

    def change(entries: list[tuple[str, str]]) -> list[str]:
        removed.update(dict.fromkeys(name for name, _ in entries if name in wanted))
        return [line for name, line in entries if name not in wanted]

    _change(path, change)
    return tuple(removed)


def _change(path: Path, change: Callable[[list[tuple[str, str]]], list[str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        entries = _entries(path)
        lines = change(entries)
        if lines != [line for _, line in entries]:
            write_atomic(path, "".join(f"{line}\n" for line in lines))


def _entries(path: Path) -> list[tuple[str, str]]:
    """Every line with the id that it names."""
    if not path.exists():
        return []
    return [
        (_id(line, f"{path} line {number}"), line)
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1)
        if line.strip()
    ]


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
