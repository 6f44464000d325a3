"""Every public record of the contracts has a line in the glossary, and every line names a record that exists."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import re

from dflash_pipeline import contracts
from tests.docs.pages import ROOT

GLOSSARY = ROOT / "docs" / "glossary.md"
LINE = re.compile(r"^\| `(\w+)` \| `(\w+)` \| (.+) \|$", re.MULTILINE)
WORD = re.compile(r"^\| (\*\*.+?\*\*) \| (.+?) \| (.+) \|$", re.MULTILINE)


def test_every_public_record_has_a_line() -> None:
    assert records() - lines().keys() == set()


def test_every_line_names_a_record_in_its_module() -> None:
    assert lines().keys() - records() == set()


def test_every_line_says_something() -> None:
    assert [record for record, meaning in lines().items() if len(meaning.split()) < 4] == []


def test_no_word_or_record_has_two_lines() -> None:
    text = GLOSSARY.read_text(encoding="utf-8")
    words = [word for cell, _, _ in WORD.findall(text) for word in re.findall(r"\*\*(.+?)\*\*", cell)]
    assert len(words) > 30
    assert sorted(set(words)) == sorted(words)
    assert len(LINE.findall(text)) == len(lines())


def test_the_contracts_hold_the_records_this_is_about() -> None:
    assert {("BatchingSpec", "batching"), ("EpochManifest", "manifest"), ("RunPlan", "plan")} <= records()


def records() -> set[tuple[str, str]]:
    """Public dataclasses of the contracts, each with the module that defines it."""
    found = set()
    for module in pkgutil.iter_modules(contracts.__path__):
        loaded = importlib.import_module(f"{contracts.__name__}.{module.name}")
        for name, thing in vars(loaded).items():
            ours = isinstance(thing, type) and dataclasses.is_dataclass(thing) and thing.__module__ == loaded.__name__
            if ours and not name.startswith("_"):
                found.add((name, module.name))
    return found


def lines() -> dict[tuple[str, str], str]:
    """Record and module, and what the glossary says of it."""
    return {(record, module): meaning for record, module, meaning in LINE.findall(GLOSSARY.read_text(encoding="utf-8"))}
