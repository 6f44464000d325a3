"""What is held equal for each oracle: the loss, and the gradient of every tensor of the drafter."""

import pytest
import torch
from torch import Tensor, nn

CLOSE = 1e-5
"""Of a loss, and of the largest entry of a gradient. Float32 summed in another order gives a fifth of it at most."""


def assert_same_loss(ours: Tensor, theirs: Tensor) -> None:
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), rel=CLOSE / 10, abs=CLOSE)


def assert_same_gradients(ours: nn.Module, theirs: nn.Module) -> None:
    """Tensor by tensor, by z-lab's names; none may be missing or zero, as equal zeros would prove nothing."""
    expected = {name: parameter.grad for name, parameter in theirs.named_parameters() if parameter.grad is not None}
    found = {name: parameter.grad for name, parameter in ours.named_parameters()}
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        largest = float(gradient.abs().max())
        assert largest > 0, name
        difference = float((found[name] - gradient).abs().max())
        assert difference <= CLOSE * largest, (name, difference, largest)


def tapped(model: nn.Module, ids: Tensor, taps: tuple[int, ...]) -> Tensor:
    """Features as transformers alone gives them, so that our taps are compared too."""
    with torch.no_grad():
        states = model(ids, output_hidden_states=True).hidden_states
    return torch.cat([states[tap + 1] for tap in taps], dim=-1)
