"""Help that a person can act on: an example that could be typed, and a word on every option."""

from __future__ import annotations

import re

import pytest
import typer

from dflash_pipeline.cli.app import app

COMMANDS = typer.main.get_command(app).commands
CONTRACT = {"run", "ingest", "rejected", "show-sample", "boundaries", "plan", "manifest", "train", "evaluate"} | {
    "verify-export",
    "export",
    "promote",
    "preflight",
    "ui",
}


def test_every_command_of_the_contract_exists():
    assert COMMANDS.keys() >= CONTRACT


def test_without_arguments_it_shows_its_commands(dflash):
    ran = dflash()
    assert ran.code == 0
    assert all(f"  {name} " in ran.out for name in COMMANDS)
    assert "..." not in ran.out.partition("Commands:")[2], "a first sentence is too long for the list"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_ends_with_an_example_of_known_options(name, dflash):
    ran = dflash(name, "--help")
    assert ran.code == 0
    head, mark, example = ran.out.rpartition("Example:\n")
    assert mark
    assert re.match(rf"\s+dflash {name}( |$)", example)
    assert all(option in head for option in re.findall(r"--[a-z-]+", example))
    assert "--json" in head
    assert "--debug" in head


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_is_explained(name):
    for parameter in COMMANDS[name].params:
        assert getattr(parameter, "help", None), f"{name} {parameter.name}"


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (["nosuch"], "dflash"),
        (["--nosuch"], "dflash"),
        (["plan"], "dflash plan"),
        (["plan", "--seed", "x"], "dflash plan"),
        (["plan", "--nosuch"], "dflash plan"),
        (["run"], "dflash run"),
        (["run", "a.yaml", "b.yaml"], "dflash run"),
        (["show-sample"], "dflash show-sample"),
        (["ui", "a.yaml", "--dagster-port", "70000"], "dflash ui"),
    ],
)
def test_wrong_usage_is_refused_in_the_form_that_was_asked_for(arguments, where, dflash):
    ran = dflash(*arguments, "--json")
    assert ran.code == 2
    assert ran.document["error"]["where"] == where
    assert ran.document["error"]["fix"] == f"see `{where} --help`"
    assert ran.err == ""
    spoken = dflash(*arguments)
    assert (spoken.code, spoken.out, spoken.err.count("\n")) == (2, "", 1)
