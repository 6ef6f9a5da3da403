"""Sigmoid, SiLU and softplus from exp and log1p alone.

The library's own give an element other bytes in the body of a vector than in its tail.
"""

import torch
from torch import Tensor


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return torch.reciprocal(torch.exp(-x) + 1.0)


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x)."""
    return x / (torch.exp(-x) + 1.0)


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), without overflow."""
    return x.clamp(min=0.0) + torch.log1p(torch.exp(-x.abs()))
