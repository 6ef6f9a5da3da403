"""Linear layers and norms of the reference."""

from dataclasses import dataclass

import torch
from torch import Tensor

from declaim.ops.elementwise import norm_rows, sigmoid, silu, store
from declaim.ops.tiles import TiledWeight, tile_weight, tiled_linear


@dataclass(frozen=True)
class VectorWeight:
    """A vector of parameters in float32, and the same plus one for zero-centred norms."""

    value: Tensor
    centred: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """The stored shape."""
        return tuple(self.value.shape)


VectorHandle = VectorWeight | Tensor
"""Ops that training shares take a bare vector too, through which gradients flow."""


def value_of(weight: VectorHandle) -> Tensor:
    """The vector itself."""
    return weight if isinstance(weight, Tensor) else weight.value


def centred(weight: VectorHandle) -> Tensor:
    """The vector plus one."""
    return weight + 1.0 if isinstance(weight, Tensor) else weight.centred


class NormOps:
    """`rms_norm`."""

    def rms_norm(
        self,
        x: Tensor,
        weight: VectorHandle,
        *,
        eps: float,
        zero_centred: bool,
        out: Tensor | None = None,
    ) -> Tensor:
        """See OpTable; computes in float32."""
        factor = centred(weight) if zero_centred else value_of(weight)
        y = norm_rows(x.float().contiguous(), eps).mul_(factor)
        return store(y.to(x.dtype), out)


class DenseOps(NormOps):
    """`linear` and the weights of linear layers and norms."""

    def prepare_linear(self, weight: Tensor) -> TiledWeight:
        """See OpTable; decoded to float32 once."""
        return tile_weight(weight)

    def prepare_vector(self, weight: Tensor) -> VectorWeight:
        """See OpTable."""
        value = weight.float()
        return VectorWeight(value, value + 1.0)

    def linear(
        self,
        x: Tensor,
        w: TiledWeight,
        base: Tensor | None = None,
        scale: Tensor | None = None,
        *,
        epilogue: str = "store",
        out: Tensor | None = None,
    ) -> Tensor:
        """See OpTable; computes in float32."""
        y = finish_linear(tiled_linear(x, w), base, scale, epilogue)
        return store(y.to(x.dtype).contiguous(), out)


def finish_linear(y: Tensor, base: Tensor | None, scale: Tensor | None, epilogue: str) -> Tensor:
    """The epilogue of `linear` on y, in float32."""
    if epilogue == "store":
        return y
    if epilogue == "silu_mul":
        gate, up = y.chunk(2, dim=1)
        return silu(gate).mul_(up)
    assert base is not None, f"{epilogue} needs a base"
    if epilogue == "add":
        return torch.add(base.float(), y)
    assert epilogue == "scaled_add" and scale is not None, f"{epilogue} without its scale"
    return torch.mul(y, sigmoid(scale.float())).add_(base)
