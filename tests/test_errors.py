"""Every error in the code: of our family, with a place and something to do; or one that such an error is made of."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from pathlib import Path

import pytest

import dflash_pipeline
from dflash_pipeline.contracts import errors
from dflash_pipeline.contracts.errors import DflashError, Failed, Refused, refusing

PACKAGE = Path(dflash_pipeline.__file__).parent
FAMILY = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, DflashError)}
# Raised to be caught a few lines away, or by a caller's mistake in code that no input can lead to.
PLAIN = {
    "assets/pages.py": {"KeyboardInterrupt"},
    "assets/whole_run.py": {"KeyboardInterrupt"},
    "contracts/fingerprint.py": {"TypeError"},
    "faults.py": {"OSError"},
    "launch/tether.py": {"OSError"},
    "model/objective.py": {"TypeError"},
    "recipe/early.py": {"ValueError"},
    "recipe/responses.py": {"ValueError"},
    "recipe/section.py": {"ValueError"},
    "recipe/text.py": {"ValueError"},
    "recipe/tracking.py": {"ValueError"},
    "recipe/training.py": {"ValueError"},
    "recipe/whole.py": {"ValueError"},
    "store/plans.py": {"ValueError"},
}


def raised() -> Iterator[tuple[str, ast.Call]]:
    """Every `raise Kind(…)`, by file. A bare `raise` and a raised variable pass an error on."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                yield path.relative_to(PACKAGE).as_posix(), node.exc


def test_no_error_of_pythons_own_reaches_a_user():
    strangers = [
        f"{file}:{call.lineno} {kind}"
        for file, call in raised()
        if hasattr(builtins, kind := ast.unparse(call.func)) and kind not in PLAIN.get(file, set())
    ]
    assert strangers == []


def test_every_error_says_where_and_what_to_do():
    looked_at, silent = 0, []
    for file, call in raised():
        if ast.unparse(call.func) in FAMILY:
            looked_at += 1
            given = {keyword.arg: keyword.value for keyword in call.keywords}
            empty = [name for name in ("where", "fix") if name not in given or ast.unparse(given[name]) in ("''", '""')]
            if empty or not call.args:
                silent.append(f"{file}:{call.lineno} lacks {empty or 'what'}")
    assert silent == []
    assert looked_at > 100, "the walk has lost its way"


def test_a_fix_is_not_the_fault_said_again():
    same = [
        f"{file}:{call.lineno}"
        for file, call in raised()
        for keyword in call.keywords
        if keyword.arg == "fix" and call.args and ast.unparse(keyword.value) == ast.unparse(call.args[0])
    ]
    assert same == []


@pytest.mark.parametrize(
    "error", [TypeError("bad\nmore"), KeyError("x"), OSError(2, "gone"), ValueError(""), RuntimeError()]
)
def test_whatever_a_library_raises_over_a_file_is_a_refusal_of_one_line(error):
    with pytest.raises(Refused) as refused, refusing("no model", where="folder", fix="give one"):
        raise error
    assert refused.value.what.startswith("no model: ")
    assert "\n" not in refused.value.what
    assert refused.value.what != "no model: "
    assert refused.value.__cause__ is error


@pytest.mark.parametrize("error", [Failed("w", where="x", fix="f"), MemoryError(), KeyboardInterrupt()])
def test_what_is_not_the_files_fault_passes(error):
    with pytest.raises(type(error)) as passed, refusing("no model", where="folder", fix="give one"):
        raise error
    assert passed.value is error
