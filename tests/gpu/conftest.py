import pytest
import torch


@pytest.fixture(autouse=True)
def card():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device: `make gpu-test` is for a machine with one")
