"""How a command answers: one JSON document on standard output, or text for a person; errors as one sentence."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO

import typer

from dflash_pipeline.cli.rim import as_our_error

# Not errors of the work: typer's own endings, and a reader that has gone. `main` answers those.
_ENDINGS = (typer.Exit, typer.Abort, typer.TyperException, BrokenPipeError)


class Answer:
    """What a command has found out so far; printed once, at its end, whether that is good or bad."""

    def __init__(self, *, out: TextIO, as_json: bool) -> None:
        self.out = out
        self.as_json = as_json
        self.known: dict[str, Any] = {}

    def say(self, facts: Mapping[str, Any] | list[Any], text: Callable[[], None]) -> None:
        """Print `facts` as JSON, or call `text` to print them for a person."""
        if self.as_json:
            print_json(facts, self.out)
        else:
            text()


@contextmanager
def answering(*, as_json: bool, debug: bool = False) -> Iterator[Answer]:
    """Run a command's body. Whatever error leaves it ends the program with its exit code, one sentence or JSON."""
    with _kept_for_the_answer(as_json) as out, _stopped_in_order():
        answer = Answer(out=out, as_json=as_json)
        try:
            yield answer
        except _ENDINGS:
            raise
        except KeyboardInterrupt:
            report_error(INTERRUPTED, known=answer.known, as_json=as_json, out=out)
            raise typer.Exit(130) from None
        except Exception as error:
            # The outermost rim: nothing is hidden, the exit code says that it failed and --debug shows where.
            if debug:
                traceback.print_exc(file=sys.stderr)
            ours = as_our_error(error)
            report_error(ours.as_json(), known=answer.known, as_json=as_json, out=out)
            raise typer.Exit(ours.exit_code) from None


@contextmanager
def _stopped_in_order() -> Iterator[None]:
    """SIGTERM is answered as Ctrl-C is: what the command has started ends first, and then the command."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


INTERRUPTED = {"what": "interrupted", "where": "", "fix": "the same command goes on where it stopped"}


def report_error(error: Mapping[str, str], *, known: Mapping[str, Any], as_json: bool, out: TextIO) -> None:
    if as_json:
        print_json({"error": error, **known}, out)
        return
    where = f"{error['where']}: " if error["where"] else ""
    print(f"dflash: {where}{error['what']}; {error['fix']}", file=sys.stderr)


def print_json(document: Any, out: TextIO | None = None) -> None:
    print(json.dumps(_finite(document), ensure_ascii=False, indent=1, allow_nan=False), file=out, flush=True)


@contextmanager
def _kept_for_the_answer(as_json: bool) -> Iterator[TextIO]:
    """With --json: while the body works, what it, its libraries or its child processes print goes to standard error."""
    if not as_json:
        yield sys.stdout
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        # A file name may hold bytes that are no text; as a backslash escape it is still JSON.
        with (
            redirect_stdout(sys.stderr),
            open(kept, "w", encoding="utf-8", errors="backslashreplace", closefd=False) as out,
        ):
            yield out
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _finite(value: Any) -> Any:
    """JSON has no NaN or infinity: they become text, as in the inputs that hold them."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
