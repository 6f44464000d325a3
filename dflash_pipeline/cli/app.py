"""Puts the commands together, and answers usage errors in the form the caller asked for."""

from __future__ import annotations

import os
import sys

import typer

from dflash_pipeline.cli import data, evaluate, plan, run, ui
from dflash_pipeline.cli.output import report_error

app = typer.Typer(
    name="dflash",
    help="From raw conversations to a DFlash drafter that serves.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for module in (run, data, plan, evaluate, ui):
    module.register(app)


def main() -> None:
    """Entry of the program. Exit codes: 0 done, 1 the work failed or a check did not hold, 2 refused."""
    as_json = "--json" in sys.argv
    try:
        code = app(standalone_mode=False)
    except typer.Exit as end:
        code = end.exit_code
    except typer.Abort:
        code = 130
    except KeyboardInterrupt:
        print("dflash: interrupted; the same command goes on where it stopped", file=sys.stderr)
        code = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except typer.TyperException as error:
        fault = {"what": error.format_message(), "where": "usage", "fix": "see `dflash COMMAND --help`"}
        report_error(fault, known={}, as_json=as_json)
        code = 2
    sys.exit(code or 0)
