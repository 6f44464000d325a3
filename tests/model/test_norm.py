"""The norm with a backward pass of its own: against torch's."""

import pytest
import torch
from torch.nn import functional

from dflash_pipeline.model.norm import RMSNorm


@pytest.mark.parametrize("shape", [(1, 7, 16), (1, 5, 4, 16), (16,), (0, 16)])
def test_values_and_gradients_are_torchs(shape):
    generator = torch.Generator().manual_seed(0)
    norm = RMSNorm(16, 1e-6)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2.0, generator=generator)
    x = torch.randn(shape, generator=generator)
    upstream = torch.randn(shape, generator=generator)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    weight = norm.weight.detach().clone().requires_grad_()
    found, expected = norm(ours), functional.rms_norm(theirs, (16,), weight, 1e-6)
    torch.testing.assert_close(found, expected)
    found.backward(upstream)
    expected.backward(upstream)
    torch.testing.assert_close(ours.grad, theirs.grad)
    torch.testing.assert_close(norm.weight.grad, weight.grad)


def test_a_view_that_is_not_contiguous_is_normed_like_its_copy():
    norm = RMSNorm(16, 1e-6)
    x = torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(0)).transpose(0, 1).requires_grad_()
    norm(x).transpose(0, 1).square().sum().backward()


def test_the_input_is_brought_to_the_weights_type():
    norm = RMSNorm(16, 1e-6).to(torch.bfloat16)
    assert norm(torch.randn(3, 16)).dtype == torch.bfloat16
