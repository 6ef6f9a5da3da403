"""What is known of each op without running it: effects, host arguments, result shapes.

Shapes of weights come from the handles: every table's handle has `shape`, that of the weight as
stored. `outputs` takes the op's own arguments, so tensors may be on the meta device.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor

from declaim.ops.table import OpSpec

Outputs = tuple[tuple[tuple[int, ...], torch.dtype], ...]


class Shaped(Protocol):
    """What a spec needs of a handle."""

    @property
    def shape(self) -> Sequence[int]:
        """Of the weight as stored."""
        ...


def _like(x: Tensor, *shape: int) -> Outputs:
    """One result of x's dtype; without a shape, of x's shape."""
    return ((shape or tuple(x.shape), x.dtype),)


def _linear(
    x: Tensor,
    w: Shaped,
    base: Tensor | None = None,
    scale: Tensor | None = None,
    *,
    epilogue: str = "store",
) -> Outputs:
    rows = w.shape[0]
    return _like(x, x.shape[0], rows // 2 if epilogue == "silu_mul" else rows)


def _rms_norm(x: Tensor, weight: Shaped, **static: object) -> Outputs:
    return _like(x)


def _causal_conv(x: Tensor, weight: Shaped, spans: object, tail: Tensor | None) -> Outputs:
    return _like(x)


def _delta_rule(
    qkv: Tensor, *operands: object, heads: tuple[int, int], widths: tuple[int, int]
) -> Outputs:
    return _like(qkv, qkv.shape[0], heads[1], widths[1])


def _gated_norm(o: Tensor, z: Tensor, weight: Shaped, **static: object) -> Outputs:
    return ((tuple(z.shape), o.dtype),)


def _qk_norm_rope(
    q: Tensor, k: Tensor, q_weight: Shaped, k_weight: Shaped, position: Tensor, **static: object
) -> Outputs:
    width = q_weight.shape[0]
    return tuple(((x.shape[0], x.shape[1] // width, width), q.dtype) for x in (q, k))


def _attend(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, spans: object, pages: object) -> Outputs:
    return _like(q, q.shape[0], q.shape[1] * q.shape[2])


def _router(x: Tensor, w: Shaped, *, top_k: int) -> Outputs:
    shape = (x.shape[0], top_k)
    return (shape, torch.float32), (shape, torch.int32)


def _experts(x: Tensor, weights: Tensor, ids: Tensor, w: Shaped, base: Tensor) -> Outputs:
    return _like(x)


def _tower_input(h: Tensor, *operands: object, **static: object) -> Outputs:
    return _like(h, h.shape[0], 2 * h.shape[1])


def _gather_rows(source: Tensor, index: Tensor, *, keep: bool = False) -> Outputs:
    return _like(source, index.shape[0], *source.shape[1:])


def _noise(seed: Tensor, counter: Tensor, slot: Tensor, *, draws: int, width: int) -> Outputs:
    return (((draws, slot.shape[0], width), torch.float32),)


def _draw_main(logits: Tensor, *operands: object, **static: object) -> Outputs:
    return (((logits.shape[0], 2), torch.int32),)


def _draw_code(logits: Tensor, *operands: object) -> Outputs:
    return (((logits.shape[0],), torch.int32),)


def _write_frame(*operands: object) -> Outputs:
    return ()


def op_specs(dtype: torch.dtype = torch.float32, ranks: int = 1) -> Mapping[str, OpSpec]:
    """The spec of every op by name.

    dtype: of embedded rows, the one thing that the arguments do not tell. ranks: how many join
    in `all_gather`.
    """

    def embed(rows: Tensor, table: Shaped, codebooks: Shaped, **static: object) -> Outputs:
        return (((rows.shape[0], table.shape[1]), dtype),)

    def extra_codes(rows: Tensor, codebooks: Shaped, **static: object) -> Outputs:
        return (((rows.shape[0], codebooks.shape[1]), dtype),)

    def all_gather(x: Tensor) -> Outputs:
        return _like(x, *x.shape[:-1], x.shape[-1] * ranks)

    spans = ("spans",)
    specs = (
        OpSpec("linear", (), (), _linear),
        OpSpec("rms_norm", (), (), _rms_norm),
        OpSpec("causal_conv", ("tail",), spans, _causal_conv),
        OpSpec("delta_rule", ("state",), spans, _delta_rule),
        OpSpec("delta_rule_chunked", ("state",), spans, _delta_rule),
        OpSpec("gated_norm", (), (), _gated_norm),
        OpSpec("qk_norm_rope", (), (), _qk_norm_rope),
        OpSpec("attend", ("pages",), spans, _attend),
        OpSpec("router", (), (), _router),
        OpSpec("experts", (), (), _experts),
        OpSpec("embed", (), (), embed),
        OpSpec("extra_codes", (), (), extra_codes),
        OpSpec("tower_input", (), (), _tower_input),
        OpSpec("gather_rows", (), (), _gather_rows),
        OpSpec("noise", (), (), _noise),
        OpSpec("draw_main", (), (), _draw_main),
        OpSpec("draw_code", (), (), _draw_code),
        OpSpec("write_frame", ("state",), (), _write_frame),
        OpSpec("all_reduce", (), (), _like),
        OpSpec("all_gather", (), (), all_gather),
    )
    return MappingProxyType({spec.name: spec for spec in specs})
