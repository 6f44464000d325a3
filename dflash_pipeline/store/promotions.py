"""Who is champion, as decided so far: `promotions.jsonl` in the storage folder, a decision a line, never rewritten."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.promotion import PromotionDecision
from dflash_pipeline.faults import fault_point, fault_write
from dflash_pipeline.store.files import fsync_folder

_DECISION = TypeAdapter(PromotionDecision)


def read_decisions(path: Path, recipe: str) -> tuple[PromotionDecision, ...]:
    """The decisions of one recipe, in order; none without a file. A last line without its end never came about."""
    return tuple(decision for decision in read_all_decisions(path) if decision.recipe == recipe)


def read_all_decisions(path: Path) -> tuple[PromotionDecision, ...]:
    try:
        *lines, _torn = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return ()
    return tuple(_decision(line, where=f"{path} line {number}") for number, line in enumerate(lines, start=1))


def append_decision(path: Path, decision: PromotionDecision) -> None:
    """Durable when this returns. What a kill left of an earlier line is cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        content = path.read_bytes()
        os.truncate(path, content.rfind(b"\n") + 1)
        fault_point("promotion.before-append")
        fault_write()
        file.write(_DECISION.dump_json(decision) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    fsync_folder(path.parent)
    fault_point("promotion.after-append")


@contextmanager
def deciding(path: Path) -> Iterator[None]:
    """One process decides at a time: another waits, and then sees what was decided. Ends with the process, too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        yield


def _decision(line: bytes, *, where: str) -> PromotionDecision:
    try:
        return _DECISION.validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise Refused(
            f"no decision: {place}{': ' if place else ''}{first['msg']}", where=where, fix="take out the damaged line"
        ) from None
