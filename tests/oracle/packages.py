"""Others' packages are no dependencies: they are put apart from .venv, and without them their tests are skipped."""

import importlib
import importlib.util
from typing import Any

import pytest


def oracle(module: str) -> Any:
    """A module of another package. Absent, the tests of a file are skipped; there but broken, they fail."""
    package = module.partition(".")[0]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"the package {package} is not there: `make oracle` puts it into .oracle", allow_module_level=True)
    return importlib.import_module(module)
