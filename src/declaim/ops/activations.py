"""Sigmoid, SiLU and softplus from exp and log1p alone.

The library's own give an element other bytes in the body of a vector than in its tail.
"""

import torch
from torch import Tensor

LARGEST_EXPONENT = 88.0
"""Beyond it, exp(-x) is cut off: at infinity the gradient would be 0 * inf."""


def one_and_exp(x: Tensor) -> Tensor:
    """1 + exp(-x), finite."""
    return torch.exp((-x).clamp(max=LARGEST_EXPONENT)) + 1.0


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return torch.reciprocal(one_and_exp(x))


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x)."""
    return x / one_and_exp(x)


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), without overflow; the gradient at 0 is 1/2."""
    size = x.abs()
    return (x + size) * 0.5 + torch.log1p(torch.exp(-size))
