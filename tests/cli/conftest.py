"""The program, called in this process: the same entry, arguments and streams, without half a minute of imports."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from dflash_pipeline.cli import main


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Standard output, which must be one JSON document and nothing else."""
        return json.loads(self.out)


Dflash = Callable[..., Ran]


@pytest.fixture
def dflash(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Dflash:
    for name in ("DAGSTER_HOME", "DFLASH_STORAGE", "DFLASH_RECIPE"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: object) -> Ran:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return Ran(code=ended.value.code, out=out, err=err)

    return call
