"""Root-mean-square norm: y = w * x / sqrt(mean(x^2) + eps), over the last dimension D."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class RMSNorm(nn.Module):
    """With a plain weight, computed in the weight's type."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.weight.dtype)
        if x.device.type == "cpu":
            return _normed_on_cpu(x, self.weight, self.eps)
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


def _normed_on_cpu(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    normed: Tensor = _CpuNorm.apply(x, weight, eps)
    return normed


class _CpuNorm(torch.autograd.Function):
    """torch has one kernel for the forward pass on a CPU, and a chain of them for the backward pass: two to four times
    the time of this, which is a tenth of a step of a small drafter."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale = (x.square().mean(-1, keepdim=True) + eps).rsqrt_()
        unit = x * scale
        ctx.save_for_backward(unit, weight, scale)
        return unit * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """dx = scale * (w * g - unit * mean(w * g * unit)); dw = sum of g * unit."""
        unit, weight, scale = ctx.saved_tensors
        products_XD = (grad * unit).reshape(-1, unit.shape[-1])
        means = (products_XD @ weight[:, None]).view(scale.shape).div_(-unit.shape[-1])
        return (grad * weight).addcmul_(unit, means).mul_(scale), products_XD.sum(0), None
