"""One family of errors. Each says what is wrong, where, and what to do; the class decides the exit code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class DflashError(Exception):
    """A sentence for the user: `what` happened, `where`, and how to `fix` it."""

    exit_code = 1

    def __init__(self, what: str, *, where: str, fix: str) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.where}: {self.what}; {self.fix}"

    def as_json(self) -> dict[str, str]:
        return {"what": self.what, "where": self.where, "fix": self.fix}


class Refused(DflashError):
    """Bad usage, bad input or a broken contract: nothing was done. Exit code 2."""

    exit_code = 2


class ContractBroken(Refused, ValueError):
    """A record that would have been false, refused at construction."""


class Failed(DflashError):
    """The work was tried and did not succeed, or a check did not hold. Exit code 1."""


@contextmanager
def refusing(what: str, *, where: str, fix: str) -> Iterator[None]:
    """Round one call of a library that reads a user's file: whatever it raises over a wrong one is a refusal.

    Such libraries raise what comes to hand (TypeError, KeyError, errors of their own): no list of kinds would be whole.
    """
    try:
        yield
    except (DflashError, MemoryError):
        raise
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise Refused(f"{what}: {lines[0] if lines else type(error).__name__}", where=where, fix=fix) from error
