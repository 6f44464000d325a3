from pathlib import Path

import pytest


@pytest.fixture
def example_target():
    return Path(__file__).parents[2] / "examples/target"
