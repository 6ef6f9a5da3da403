"""Rotary positions: norm per head and rotation of its first dimensions."""

import torch
from torch import Tensor

from declaim.ops.dense import VectorHandle, centred
from declaim.ops.elementwise import norm_rows, store


def inverse_frequencies(rotary: int, theta: float) -> Tensor:
    """theta ** (-2 i / rotary), float32 [rotary / 2]; always computed at this one shape."""
    exponent = torch.arange(0, rotary, 2, dtype=torch.float32) / rotary
    return 1.0 / theta**exponent


def rotate(x: Tensor, cosine: Tensor, sine: Tensor, rotary: int, interleaved: bool) -> Tensor:
    """Rotate the first dimensions of x [n, heads, D]; cosine and sine [n, 1, rotary / 2]."""
    if interleaved:
        first, second = x[..., 0:rotary:2], x[..., 1:rotary:2]
    else:
        first, second = x[..., : rotary // 2], x[..., rotary // 2 : rotary]
    left = first * cosine - second * sine
    right = second * cosine + first * sine
    if interleaved:
        return torch.cat((torch.stack((left, right), dim=-1).flatten(-2), x[..., rotary:]), dim=-1)
    return torch.cat((left, right, x[..., rotary:]), dim=-1)


class RopeOps:
    """`qk_norm_rope`."""

    def __init__(self) -> None:
        super().__init__()
        self._frequencies: dict[tuple[int, float], Tensor] = {}

    def frequencies(self, rotary: int, theta: float, device: torch.device) -> Tensor:
        """Inverse frequencies on a device, computed once a table."""
        key = (rotary, theta)
        if key not in self._frequencies:
            self._frequencies[key] = inverse_frequencies(rotary, theta)
        return self._frequencies[key].to(device)

    def qk_norm_rope(
        self,
        q: Tensor,
        k: Tensor,
        q_weight: VectorHandle,
        k_weight: VectorHandle,
        position: Tensor,
        *,
        eps: float,
        rotary: int,
        theta: float,
        interleaved: bool,
        out: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """See OpTable; computes in float32."""
        rows, width = q.shape[0], q_weight.shape[0]
        heads, key_heads = q.shape[1] // width, k.shape[1] // width
        joined = torch.cat((q, k), dim=1).float().view(rows, heads + key_heads, width)
        normed = norm_rows(joined, eps)
        normed[:, :heads].mul_(centred(q_weight))
        normed[:, heads:].mul_(centred(k_weight))
        angle = position.float()[:, None, None] * self.frequencies(rotary, theta, q.device)
        y = rotate(normed, angle.cos(), angle.sin(), rotary, interleaved).to(q.dtype)
        if out is None:
            return y[:, :heads].contiguous(), y[:, heads:].contiguous()
        return store(y[:, :heads], out[0]), store(y[:, heads:], out[1])
