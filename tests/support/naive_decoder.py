"""The codec's decode side as plain float64 mathematics on whole utterances, by published names.

Every convolution pads all that lies before the first column, every transposed convolution is a
sum over its input columns, attention is one masked matrix. Nothing is shared with the package
but the names of the tensors.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class NaiveDecoder:
    """What the weights do not tell; the sizes come from the tensors themselves."""

    weights: Mapping[str, Tensor]
    rates: tuple[int, ...]
    factors: tuple[int, ...]
    layers: int
    heads: int
    window: int
    base: float
    eps: float
    residual: int
    table: torch.dtype

    def decode(self, codes: Tensor) -> Tensor:
        """int64 codes [Q, frames] -> float64 samples [frames * hop]."""
        latent = self._latent(codes)
        x = self._transformer(latent).T
        for stage, factor in enumerate(self.factors):
            prefix = f"quantizer.upsample.{stage}."
            x = self._spread(x, f"{prefix}0.conv", factor)
            x = self._convnext(x, f"{prefix}1.")
        x = self._convolution(x, "decoder.model.0.conv")
        for stage, rate in enumerate(self.rates, 1):
            prefix = f"decoder.model.{stage}.block."
            x = self._spread(self._snake(x, f"{prefix}0.alpha"), f"{prefix}1.conv", rate)
            for unit, dilation in ((2, 1), (3, 3), (4, 9)):
                inner = f"{prefix}{unit}.block."
                y = self._snake(x, f"{inner}0.alpha")
                y = self._convolution(y, f"{inner}1.conv", dilation=dilation)
                y = self._convolution(self._snake(y, f"{inner}2.alpha"), f"{inner}3.conv")
                x = x + y
        last = len(self.rates) + 1
        x = self._snake(x, f"decoder.model.{last}.alpha")
        return torch.tanh(self._convolution(x, f"decoder.model.{last + 1}.conv"))[0]

    def _weight(self, name: str) -> Tensor:
        return self.weights[name].double()

    def _latent(self, codes: Tensor) -> Tensor:
        prefixes = ["quantizer.semantic_quantizer.quantizers.0."]
        prefixes += [f"quantizer.quantizer.quantizers.{i}." for i in range(self.residual)]
        frames = []
        for column in codes.T.tolist():
            total = torch.zeros((), dtype=torch.float64)
            for prefix, code in zip(prefixes, column, strict=True):
                book = self._weight(f"{prefix}codebook.weight")
                row = book[min(code, len(book) - 1)]
                projection = self._weight(f"{prefix}out_proj.weight")[:, :, 0]
                total = total + projection @ row + self._weight(f"{prefix}out_proj.bias")
            frames.append(total)
        return torch.stack(frames)

    def _snake(self, x: Tensor, name: str) -> Tensor:
        alpha = self._weight(name)[0]
        return x + torch.sin(alpha * x) ** 2 / (alpha + 1e-9)

    def _convolution(self, x: Tensor, name: str, dilation: int = 1, groups: int = 1) -> Tensor:
        weight, bias = self._weight(f"{name}.weight"), self._weight(f"{name}.bias")
        padded = functional.pad(x, ((weight.shape[-1] - 1) * dilation, 0))
        return functional.conv1d(padded[None], weight, bias, dilation=dilation, groups=groups)[0]

    def _spread(self, x: Tensor, name: str, stride: int) -> Tensor:
        weight, bias = self._weight(f"{name}.weight"), self._weight(f"{name}.bias")
        width, columns = weight.shape[-1], x.shape[-1]
        y = torch.zeros(weight.shape[1], (columns - 1) * stride + width, dtype=torch.float64)
        for column in range(columns):
            part = torch.einsum("i,iok->ok", x[:, column], weight)
            y[:, column * stride : column * stride + width] += part
        return y[:, : columns * stride] + bias[:, None]

    def _convnext(self, x: Tensor, prefix: str) -> Tensor:
        y = self._convolution(x, f"{prefix}dwconv.conv", groups=x.shape[0]).T
        y = (y - y.mean(-1, keepdim=True)) / (y.var(-1, correction=0, keepdim=True) + 1e-6).sqrt()
        y = y * self._weight(f"{prefix}norm.weight") + self._weight(f"{prefix}norm.bias")
        y = y @ self._weight(f"{prefix}pwconv1.weight").T + self._weight(f"{prefix}pwconv1.bias")
        y = 0.5 * y * (1 + torch.erf(y / math.sqrt(2)))
        y = y @ self._weight(f"{prefix}pwconv2.weight").T + self._weight(f"{prefix}pwconv2.bias")
        return x + self._weight(f"{prefix}gamma")[:, None] * y.T

    def _transformer(self, x: Tensor) -> Tensor:
        prefix = "quantizer.post_module."
        for layer in range(self.layers):
            p = f"{prefix}layers.{layer}."
            mixed = self._attention(self._norm(x, f"{p}attention_norm.weight"), f"{p}attention.")
            x = x + mixed * self._weight(f"{p}attention_layer_scale.gamma")
            y = self._norm(x, f"{p}ffn_norm.weight")
            gate, up = (y @ self._weight(f"{p}feed_forward.{n}.weight").T for n in ("w1", "w3"))
            y = (gate * torch.sigmoid(gate) * up) @ self._weight(f"{p}feed_forward.w2.weight").T
            x = x + y * self._weight(f"{p}ffn_layer_scale.gamma")
        return self._norm(x, f"{prefix}norm.weight")

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + self.eps).sqrt() * self._weight(name)

    def _attention(self, x: Tensor, prefix: str) -> Tensor:
        frames, width = x.shape
        q, k, v = (x @ self._weight(f"{prefix}wqkv.weight").T).split(width, -1)
        at = torch.arange(frames)
        visible = (at[None] <= at[:, None]) & (at[None] > at[:, None] - self.window)
        size = width // self.heads
        heads = []
        for head in range(self.heads):
            part = slice(head * size, (head + 1) * size)
            score = self._rotated(q[:, part]) @ self._rotated(k[:, part]).T / math.sqrt(size)
            heads.append(score.masked_fill(~visible, -math.inf).softmax(-1) @ v[:, part])
        return torch.cat(heads, -1) @ self._weight(f"{prefix}wo.weight").T

    def _rotated(self, x: Tensor) -> Tensor:
        frames, size = x.shape
        frequency = 1.0 / self.base ** (torch.arange(0, size, 2).float() / size)
        angle = torch.arange(frames).float()[:, None] * frequency
        turn = torch.complex(
            angle.cos().to(self.table).double(), angle.sin().to(self.table).double()
        )
        pairs = torch.view_as_complex(x.reshape(frames, -1, 2).contiguous())
        return torch.view_as_real(pairs * turn).reshape(frames, size)
