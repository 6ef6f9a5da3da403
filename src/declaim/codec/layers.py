"""The codec's convolutional building blocks, causal and resumable.

A layer that looks back keeps its last input columns in `tails`, a mapping from its published name
to a tensor [batch, channels, columns], which a call reads and then overwrites in place. Zeros
there mean that nothing came before, so a whole clip is one call on zeroed tails. Signals are
channels first, float32 [batch, channels, columns]. Knows no file and no stream.
"""

import torch
from torch import Tensor
from torch.nn import functional

Weights = dict[str, Tensor]
Tails = dict[str, Tensor]

NORM_EPS = 1e-6


def snake(x: Tensor, alpha: Tensor) -> Tensor:
    """x + sin(alpha x)^2 / alpha, elementwise; alpha [1, channels, 1]."""
    return x + torch.sin(alpha * x).square() / (alpha + 1e-9)


def extended(x: Tensor, name: str, tails: Tails) -> Tensor:
    """The columns that came before, then x; the last ones are kept for the next call."""
    tail = tails[name]
    joined = torch.cat((tail, x), -1)
    tail.copy_(joined[..., joined.shape[-1] - tail.shape[-1] :].detach())
    return joined


class CausalConvolution:
    """A convolution that sees the present stride of columns and those before it.

    Its tail holds the kernel's reach less the stride; without a difference it needs none.
    """

    def __init__(
        self, weights: Weights, name: str, *, stride: int = 1, dilation: int = 1, groups: int = 1
    ) -> None:
        self.name = name
        self.weight = weights[f"{name}.weight"]
        self.bias = weights[f"{name}.bias"]
        self.stride = stride
        self.dilation = dilation
        self.groups = groups

    def __call__(self, x: Tensor, tails: Tails) -> Tensor:
        """[batch, in, columns] -> [batch, out, columns / stride]; columns must divide."""
        if (self.weight.shape[-1] - 1) * self.dilation >= self.stride:
            x = extended(x, self.name, tails)
        return functional.conv1d(
            x,
            self.weight,
            self.bias,
            stride=self.stride,
            dilation=self.dilation,
            groups=self.groups,
        )


class CausalUpsampling:
    """A transposed convolution whose kernel is its stride or twice its stride.

    An output column depends on the input column above it and, with the wider kernel, on the one
    before, which is what the tail holds.
    """

    def __init__(self, weights: Weights, name: str, stride: int) -> None:
        self.name = name
        self.weight = weights[f"{name}.weight"]
        self.bias = weights[f"{name}.bias"]
        self.stride = stride

    def __call__(self, x: Tensor, tails: Tails) -> Tensor:
        """[batch, in, columns] -> [batch, out, columns * stride]."""
        first, count = 0, x.shape[-1] * self.stride
        if self.weight.shape[-1] > self.stride:
            x, first = extended(x, self.name, tails), self.stride
        y = functional.conv_transpose1d(x, self.weight, self.bias, stride=self.stride)
        return y[..., first : first + count]


class ResidualUnit:
    """x + conv1(snake(conv7(snake(x)))), the wide kernel dilated."""

    def __init__(self, weights: Weights, prefix: str, dilation: int) -> None:
        self.alpha_in = weights[f"{prefix}block.0.alpha"]
        self.wide = CausalConvolution(weights, f"{prefix}block.1.conv", dilation=dilation)
        self.alpha_out = weights[f"{prefix}block.2.alpha"]
        self.narrow = CausalConvolution(weights, f"{prefix}block.3.conv")

    def __call__(self, x: Tensor, tails: Tails) -> Tensor:
        """[batch, channels, columns], shape kept."""
        y = self.wide(snake(x, self.alpha_in), tails)
        return x + self.narrow(snake(y, self.alpha_out), tails)


class ConvNextBlock:
    """Depthwise convolution, layer norm and a wide pointwise network, scaled and added to x."""

    def __init__(self, weights: Weights, prefix: str) -> None:
        name = f"{prefix}dwconv.conv"
        channels = weights[f"{name}.weight"].shape[0]
        self.depthwise = CausalConvolution(weights, name, groups=channels)
        self.norm_weight = weights[f"{prefix}norm.weight"]
        self.norm_bias = weights[f"{prefix}norm.bias"]
        self.widen = (weights[f"{prefix}pwconv1.weight"], weights[f"{prefix}pwconv1.bias"])
        self.narrow = (weights[f"{prefix}pwconv2.weight"], weights[f"{prefix}pwconv2.bias"])
        self.gamma = weights[f"{prefix}gamma"]

    def __call__(self, x: Tensor, tails: Tails) -> Tensor:
        """[batch, channels, columns], shape kept."""
        y = self.depthwise(x, tails).transpose(1, 2)
        y = functional.layer_norm(y, y.shape[-1:], self.norm_weight, self.norm_bias, NORM_EPS)
        y = functional.linear(functional.gelu(functional.linear(y, *self.widen)), *self.narrow)
        return x + (self.gamma * y).transpose(1, 2)
