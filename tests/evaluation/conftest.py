from pathlib import Path

import pytest

from dflash_pipeline.evaluation.export import export_drafter
from tests.tiny_models import strong_drafter, tiny_config, tiny_model


@pytest.fixture(scope="session")
def example_target():
    return Path(__file__).parents[2] / "examples/target"


@pytest.fixture(scope="session")
def target_dir(tmp_path_factory, example_target):
    """A random target with the example's tokenizer."""
    folder = tmp_path_factory.mktemp("target")
    tiny_model().save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).write_bytes((example_target / name).read_bytes())
    return folder


@pytest.fixture
def exported(target_dir, tmp_path):
    """A drafter exported for `target_dir`, untrained."""
    config = tiny_config()
    folder = tmp_path / "export"
    export_drafter(config, strong_drafter(config).state_dict(), target_dir=target_dir, out=folder, card="# Card\n")
    return folder
