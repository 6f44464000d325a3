"""Puts the commands together, and answers usage errors in the form the caller asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper

import typer

from dflash_pipeline.cli import (
    compare,
    data,
    doctor,
    evaluate,
    exclude,
    export,
    forecast,
    plan,
    preflight,
    promote,
    recipe,
    report,
    run,
    snapshots,
    spikes,
    ui,
)
from dflash_pipeline.cli.output import INTERRUPTED, report_error

app = typer.Typer(
    name="dflash",
    help="From raw conversations to a DFlash drafter that serves.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for module in (
    run,
    recipe,
    preflight,
    data,
    snapshots,
    plan,
    forecast,
    report,
    evaluate,
    export,
    promote,
    spikes,
    compare,
    exclude,
    doctor,
    ui,
):
    module.register(app)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry of the program. Exit codes: 0 done, 1 the work failed or a check did not hold, 2 refused."""
    # Threads of torch that wait by spinning take cores from each other and from other programs: on a busy machine
    # decoding then takes ten times as long. Read when torch is loaded, so set before; inherited by all we start.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    given = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in given
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = app(args=given or ["--help"], prog_name="dflash", standalone_mode=False)
        sys.stdout.flush()
    except typer.Exit as end:
        code = end.exit_code
    except (typer.Abort, KeyboardInterrupt):  # Inside a command, typer makes the first of the second.
        report_error(INTERRUPTED, known={}, as_json=as_json, out=sys.stdout)
        code = 130
    except BrokenPipeError:
        # The reader of a pipe has seen enough. What is still buffered must not fail once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except typer.TyperException as error:
        report_error(_usage(error), known={}, as_json=as_json, out=sys.stdout)
        code = 2
    sys.exit(code or 0)


def _usage(error: typer.TyperException) -> dict[str, str]:
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "dflash"
    return {"what": error.format_message().rstrip("."), "where": command, "fix": f"see `{command} --help`"}
