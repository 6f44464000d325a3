import numpy as np
import pytest
import torch

from dflash_pipeline.evaluation.decode import greedy_decode
from dflash_pipeline.model.target import FrozenTarget
from tests.tiny_models import MASK_TOKEN, tiny_model


@pytest.fixture(scope="package")
def talking_dir(tmp_path_factory):
    """A random target whose greedy answers are not one token over and over."""
    folder = tmp_path_factory.mktemp("talking")
    tiny_model(seed=3).save_pretrained(folder)
    return folder


@pytest.fixture(scope="package")
def answered(talking_dir):
    """`answered(prompt, answer)` is a text [S]: random tokens, so many, and the target's own greedy answer to them."""
    target = FrozenTarget.load(talking_dir, tap_layer_ids=())
    random = np.random.default_rng(0)

    def text(prompt: int, answer: int) -> torch.Tensor:
        ids = random.integers(0, MASK_TOKEN, prompt).tolist()
        given = greedy_decode(target, ids, max_new_tokens=answer, stop_ids=frozenset())
        return torch.tensor(ids + given)

    return text
