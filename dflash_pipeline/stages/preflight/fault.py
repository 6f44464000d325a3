"""One thing that is wrong, in the words of a refusal; and many of them as one refusal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from dflash_pipeline.contracts.errors import DflashError, Refused


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """What is wrong, where, and what to do about it."""

    where: str
    what: str
    fix: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}; {self.fix}"


@contextmanager
def noted(faults: list[Fault]) -> Iterator[None]:
    """A refusal inside becomes one more fault, and the work goes on after the block."""
    try:
        yield
    except DflashError as error:
        faults.append(Fault(where=error.where, what=error.what, fix=error.fix))


def refuse(faults: Sequence[Fault], *, recipe_name: str) -> None:
    """Raise `Refused` with all of them in one sentence, unless there is none."""
    if not faults:
        return
    if len(faults) == 1:
        [only] = faults
        raise Refused(only.what, where=only.where, fix=only.fix)
    listed = " ".join(f"({number}) {fault}." for number, fault in enumerate(faults, start=1))
    raise Refused(
        f"{len(faults)} faults: {listed.removesuffix('.')}",
        where=f"recipe {recipe_name}",
        fix="correct them all; `dflash preflight` lists what is left",
    )
