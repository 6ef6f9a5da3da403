"""Activations and sums whose bytes do not depend on where an element stands, and `out`.

torch's own sigmoid, silu and softplus give other bytes in the vectorised body of a tensor than
in its tail; exp, log1p and division do not, so they are composed here of those.
"""

from collections.abc import Iterable

import torch
from torch import Tensor


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)); exp may overflow to infinity, which gives 0."""
    return (x.neg().exp_() + 1.0).reciprocal()


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x)."""
    return x / (x.neg().exp_() + 1.0)


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), never overflowing."""
    return x.abs().neg_().exp_().log1p().add_(x.clamp_min(0.0))


def ordered_sum(parts: Iterable[Tensor], start: Tensor) -> Tensor:
    """start + parts, one after another; start is written."""
    for part in parts:
        start.add_(part)
    return start


def store(result: Tensor, out: Tensor | None) -> Tensor:
    """The result, or `out` with the result in it."""
    return result if out is None else out.copy_(result)


def norm_rows(x: Tensor, eps: float) -> Tensor:
    """x * rsqrt(mean(x^2) + eps) over the last dimension; x float32."""
    return x * (x * x).mean(-1, keepdim=True).add_(eps).rsqrt_()


def zero_where(condition: Tensor, x: Tensor) -> Tensor:
    """x with exact zeros where the condition holds, whatever x holds there."""
    return torch.where(condition, x.new_zeros(()), x)
