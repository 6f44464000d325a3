"""How a command answers: one JSON document on standard output, or text for a person; errors as one sentence."""

from __future__ import annotations

import json
import math
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from collections.abc import Iterator
from typing import Any

import typer

from dflash_pipeline.contracts.errors import DflashError


class Answer:
    """What a command has found out so far; printed once, at its end, whether that is good or bad."""

    def __init__(self, *, as_json: bool, debug: bool) -> None:
        self.as_json = as_json
        self.debug = debug
        self.known: dict[str, Any] = {}

    def say(self, facts: Mapping[str, Any] | list[Any], text: Callable[[], None]) -> None:
        """Print `facts` as JSON, or call `text` to print them for a person."""
        if self.as_json:
            print_json(facts)
        else:
            text()


@contextmanager
def answering(*, as_json: bool, debug: bool = False) -> Iterator[Answer]:
    """Run a command's body; an error of ours ends it with its exit code and one sentence, or as JSON."""
    answer = Answer(as_json=as_json, debug=debug)
    try:
        yield answer
    except DflashError as error:
        if debug:
            traceback.print_exc(file=sys.stderr)
        report_error(error.as_json(), known=answer.known, as_json=as_json)
        raise typer.Exit(error.exit_code) from None


def report_error(error: Mapping[str, str], *, known: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print_json({"error": error, **known})
        return
    where = f"{error['where']}: " if error["where"] else ""
    print(f"dflash: {where}{error['what']}; {error['fix']}", file=sys.stderr)


def print_json(document: Any) -> None:
    print(json.dumps(_finite(document), ensure_ascii=False, indent=1, allow_nan=False))


def _finite(value: Any) -> Any:
    """JSON has no NaN or infinity: they become text, as in the inputs that hold them."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
