"""What pages say is so: links, anchors, commands and options, make targets, source files, examples that run."""

from __future__ import annotations

import doctest
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import typer
import yaml

from dflash_pipeline.cli.app import app
from dflash_pipeline.recipe import Recipe
from tests.docs.pages import ROOT, code_blocks, name_of, pages, without_code_blocks

LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
COMMAND = re.compile(r"`dflash ([a-z][a-z-]*)")
TARGET = re.compile(r"`make ([a-z][a-z-]*)")
SOURCE = re.compile(r"`([\w/]+\.py)`")
EVERY_PAGE = pytest.mark.parametrize("page", pages(), ids=name_of)


@EVERY_PAGE
def test_relative_links_lead_somewhere(page: Path) -> None:
    assert [fault for link in links(page) if (fault := fault_of(page, link))] == []


@EVERY_PAGE
def test_commands_and_make_targets_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert set(COMMAND.findall(text)) <= commands().keys()
    assert set(TARGET.findall(text)) <= make_targets()


@EVERY_PAGE
def test_command_lines_use_options_that_exist(page: Path) -> None:
    for line in command_lines(page):
        name, *arguments = line
        unknown = {a.partition("=")[0] for a in arguments if a.startswith("--")} - commands()[name]
        assert not unknown, f"dflash {name} has no {unknown}"


@EVERY_PAGE
def test_examples_print_what_they_show(page: Path) -> None:
    failed, tried = doctest.testfile(str(page), module_relative=False, verbose=False)
    assert failed == 0
    assert tried or ">>>" not in page.read_text(encoding="utf-8")


@EVERY_PAGE
def test_no_page_knows_this_machine(page: Path) -> None:
    found = re.findall(r"(?:^|[\s`(\"'])(/(?:home|root|tmp|work|Users)/\S*)", page.read_text(encoding="utf-8"))
    assert found == []


@EVERY_PAGE
def test_named_source_files_exist(page: Path) -> None:
    folders = (ROOT / "dflash_pipeline", ROOT / "assets", ROOT / "tests", ROOT / "bench")
    known = [f"/{path.relative_to(ROOT).as_posix()}" for folder in folders for path in folder.rglob("*.py")]
    named = SOURCE.findall(page.read_text(encoding="utf-8"))
    assert [name for name in named if not any(path.endswith(f"/{name}") for path in known)] == []


def test_the_readmes_recipe_is_one() -> None:
    [block] = code_blocks((ROOT / "README.md").read_text(encoding="utf-8"), "yaml")
    assert Recipe.model_validate(yaml.safe_load(block)).name == "mine"


def test_the_map_of_imports_is_the_one_that_is_checked() -> None:
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    [drawn] = [block for block in code_blocks(contributing, "") if "ingest" in block]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    [layers] = [contract["layers"] for contract in settings["contracts"] if contract["type"] == "layers"]
    assert [re.split(r"\s{2,}", line.strip())[0].replace("│", "|") for line in drawn.splitlines()] == layers


def test_every_command_is_in_the_readme() -> None:
    named = set(COMMAND.findall((ROOT / "README.md").read_text(encoding="utf-8")))
    assert named == commands().keys()


def test_every_decision_has_its_parts_and_its_number() -> None:
    decisions = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    for number, page in enumerate(decisions, start=1):
        titles = HEADING.findall(page.read_text(encoding="utf-8"))
        assert page.name.startswith(f"{number:04d}-")
        assert titles[0].startswith(f"{number}. ")
        assert titles[1:] == ["Context", "Decision", "Consequences"]
    assert len(decisions) >= 12


def test_what_the_tests_look_for_is_there() -> None:
    """None of the above holds only because nothing was found."""
    assert sum(len(links(page)) for page in pages()) > 20
    assert any("#" in link for page in pages() for link in links(page))
    assert sum(len(command_lines(page)) for page in pages()) > 2
    assert sum(page.read_text(encoding="utf-8").count(">>>") for page in pages()) > 5


@pytest.mark.parametrize("link", ["nowhere.md", "docs/glossary.md#no-such-words", "#no-such-heading"])
def test_a_link_that_leads_nowhere_is_found(link: str) -> None:
    assert fault_of(ROOT / "README.md", link)


def links(page: Path) -> list[str]:
    """Relative links and anchors; what has a scheme is not ours to check."""
    found = LINK.findall(without_code_blocks(page.read_text(encoding="utf-8")))
    return [link for link in found if not re.match(r"[a-z]+:", link)]


def fault_of(page: Path, link: str) -> str | None:
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    if not target.exists():
        return f"{link}: no such file"
    if anchor and anchor not in anchors(target):
        return f"{link}: no such heading"
    return None


def anchors(page: Path) -> set[str]:
    """Headings as GitHub turns them into anchors; a repeated one gets a number."""
    found: set[str] = set()
    for heading in HEADING.findall(without_code_blocks(page.read_text(encoding="utf-8"))):
        plain = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        again = sum(1 for other in found if re.fullmatch(rf"{re.escape(plain)}(-\d+)?", other))
        found.add(f"{plain}-{again}" if again else plain)
    return found


def commands() -> dict[str, set[str]]:
    """Each command and its options."""
    group = typer.main.get_command(app)
    assert hasattr(group, "commands")
    return {
        name: {option for parameter in command.params for option in parameter.opts} | {"--help"}
        for name, command in group.commands.items()
    }


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):(?!=)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def command_lines(page: Path) -> list[list[str]]:
    """Command and arguments of every line in a shell block that calls dflash."""
    blocks = code_blocks(page.read_text(encoding="utf-8"), "sh")
    lines = [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]
    return [words[1:] for words in lines if len(words) > 1 and words[0] == "dflash"]
