"""The codec's windowed transformer, causal and resumable; batch rows may stand anywhere.

Each row of the batch is at its own position in its own stream. What a layer must remember is the
keys and values of the last window - 1 frames, in buffers of that fixed size: right-aligned, zero
where the stream had not begun, and never attended to there. Knows no file and no codes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from declaim.codec.layers import Weights


@dataclass(frozen=True)
class TransformerShape:
    """What a windowed transformer's weights do not tell.

    window: frames that a frame sees, itself included. table_dtype: what cosines and sines are
    rounded to before they are used.
    """

    layers: int
    heads: int
    head_dim: int
    window: int
    rope_base: float
    norm_eps: float
    table_dtype: torch.dtype


class WindowTransformer:
    """Pre-norm layers with scaled residuals, then a norm; interleaved rotary positions."""

    def __init__(self, shape: TransformerShape, weights: Weights, prefix: str) -> None:
        self.shape = shape
        self.layers = [
            _Layer(shape, weights, f"{prefix}layers.{index}.") for index in range(shape.layers)
        ]
        self.norm = weights[f"{prefix}norm.weight"]
        even = torch.arange(0, shape.head_dim, 2, dtype=torch.float32, device=self.norm.device)
        self.frequency = 1.0 / shape.rope_base ** (even / shape.head_dim)

    def __call__(self, x: Tensor, position: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Frames x [batch, frames, width] that begin at position int64 [batch]; shape kept.

        keys, values [layers, batch, window - 1, heads, head_dim] of the frames before; they are
        overwritten by those of the last window - 1 frames up to the end of x.
        """
        rotation = self._rotation(position, x.shape[1])
        visible = self._visible(position, x.shape[1])
        for index, layer in enumerate(self.layers):
            x = layer(x, rotation, visible, (keys[index], values[index]))
        return _rms_norm(x, self.norm, self.shape.norm_eps)

    def _rotation(self, position: Tensor, frames: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines [batch, frames, 1, head_dim / 2] of the frames' positions.

        Computed by position rather than looked up, so that a stream may be of any length.
        """
        at = position[:, None] + torch.arange(frames, device=position.device)
        angle = at[..., None, None].to(torch.float32) * self.frequency
        table = self.shape.table_dtype
        return angle.cos().to(table).float(), angle.sin().to(table).float()

    def _visible(self, position: Tensor, frames: int) -> Tensor:
        """Which keys a frame attends to: bool [batch, 1, frames, window - 1 + frames]."""
        before = self.shape.window - 1
        query = torch.arange(frames, device=position.device)[:, None]
        key = torch.arange(-before, frames, device=position.device)
        inside = (key <= query) & (key >= query - before)
        begun = position[:, None] + key >= 0
        return (inside & begun[:, None, :])[:, None]


class _Layer:
    def __init__(self, shape: TransformerShape, weights: Weights, prefix: str) -> None:
        self.shape = shape
        self.attention_norm = weights[f"{prefix}attention_norm.weight"]
        self.qkv = weights[f"{prefix}attention.wqkv.weight"]
        self.out = weights[f"{prefix}attention.wo.weight"]
        self.attention_scale = weights[f"{prefix}attention_layer_scale.gamma"]
        self.ffn_norm = weights[f"{prefix}ffn_norm.weight"]
        self.gate = weights[f"{prefix}feed_forward.w1.weight"]
        self.down = weights[f"{prefix}feed_forward.w2.weight"]
        self.up = weights[f"{prefix}feed_forward.w3.weight"]
        self.ffn_scale = weights[f"{prefix}ffn_layer_scale.gamma"]

    def __call__(
        self,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        visible: Tensor,
        cache: tuple[Tensor, Tensor],
    ) -> Tensor:
        """[batch, frames, width], shape kept; cache [batch, window - 1, heads, head_dim] each."""
        shape = self.shape
        qkv = functional.linear(_rms_norm(x, self.attention_norm, shape.norm_eps), self.qkv)
        q, k, v = (
            part.reshape(*x.shape[:2], shape.heads, shape.head_dim) for part in qkv.chunk(3, -1)
        )
        k = _shifted(cache[0], _rotated(k, *rotation))
        v = _shifted(cache[1], v)
        attended = functional.scaled_dot_product_attention(
            _rotated(q, *rotation).transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            attn_mask=visible,
        )
        mixed = functional.linear(attended.transpose(1, 2).flatten(2), self.out)
        x = x + mixed * self.attention_scale
        y = _rms_norm(x, self.ffn_norm, shape.norm_eps)
        y = functional.silu(functional.linear(y, self.gate)) * functional.linear(y, self.up)
        return x + functional.linear(y, self.down) * self.ffn_scale


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def _rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate the pairs (0, 1), (2, 3), ... of each head."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cosine - odd * sine, odd * cosine + even * sine), -1).flatten(-2)


def _shifted(cache: Tensor, new: Tensor) -> Tensor:
    """The cache, then the new frames, along dimension 1; the cache keeps the last of both."""
    joined = torch.cat((cache, new), 1)
    cache.copy_(joined[:, joined.shape[1] - cache.shape[1] :].detach())
    return joined
