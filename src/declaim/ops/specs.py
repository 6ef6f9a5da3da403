"""What is known of every op without running it: effects, host arguments, shapes and dtypes.

A recorder makes buffers and finds dependences from this; tests hold every table to it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from declaim.ops.table import Handle, OpSpec

Output = tuple[tuple[int, ...], torch.dtype]
"""Shape and dtype of one result."""

Outputs = tuple[Output, ...]


def like(x: Tensor, *_: Any, **__: Any) -> Outputs:
    """One result with the shape and dtype of the first operand."""
    return ((tuple(x.shape), x.dtype),)


def nothing(*_: Any, **__: Any) -> Outputs:
    """No result: the op has effects alone."""
    return ()


def linear(x: Tensor, w: Handle, *_: Any, epilogue: str = "store", **__: Any) -> Outputs:
    """[n, rows of w], or half of them."""
    columns = w.shape[0] // 2 if epilogue == "silu_mul" else w.shape[0]
    return (((x.shape[0], columns), x.dtype),)


def delta_rule(
    qkv: Tensor, *_: Any, heads: tuple[int, int], widths: tuple[int, int], **__: Any
) -> Outputs:
    """[n, value heads, value width]."""
    return (((qkv.shape[0], heads[1], widths[1]), qkv.dtype),)


def gated_norm(o: Tensor, *_: Any, **__: Any) -> Outputs:
    """[n, heads * width]."""
    return (((o.shape[0], o.shape[1] * o.shape[2]), o.dtype),)


def qk_norm_rope(
    q: Tensor, k: Tensor, q_weight: Handle, k_weight: Handle, *_: Any, **__: Any
) -> Outputs:
    """Queries [n, H, D] and keys [n, K, D]."""

    def heads(x: Tensor, weight: Handle) -> Output:
        width = weight.shape[0]
        return (x.shape[0], x.shape[1] // width, width), x.dtype

    return heads(q, q_weight), heads(k, k_weight)


def attend(q: Tensor, *_: Any, **__: Any) -> Outputs:
    """[n, H * D]."""
    return (((q.shape[0], q.shape[1] * q.shape[2]), q.dtype),)


def router(x: Tensor, *_: Any, top_k: int, **__: Any) -> Outputs:
    """Weights and ids, [n, top_k] each."""
    shape = (x.shape[0], top_k)
    return (shape, torch.float32), (shape, torch.int32)


def experts(
    x: Tensor, weights: Tensor, ids: Tensor, w: Handle, base: Tensor, *_: Any, **__: Any
) -> Outputs:
    """As base, [n, hidden]."""
    return like(base)


def embed(rows: Tensor, table: Handle, *_: Any, **__: Any) -> Outputs:
    """[n, width of the table]."""
    return (((rows.shape[0], table.shape[1]), torch.float32),)


def extra_codes(rows: Tensor, codebooks: Handle, *_: Any, **__: Any) -> Outputs:
    """[n, width of the codebooks]."""
    return embed(rows, codebooks)


def tower_input(h: Tensor, *_: Any, **__: Any) -> Outputs:
    """[n, 2 dim]."""
    return (((h.shape[0], 2 * h.shape[1]), h.dtype),)


def gather_rows(source: Tensor, index: Tensor, *_: Any, **__: Any) -> Outputs:
    """A row of the source for each index."""
    return (((index.shape[0], *source.shape[1:]), source.dtype),)


def noise(
    seed: Tensor, counter: Tensor, slot: Tensor, *_: Any, draws: int, width: int, **__: Any
) -> Outputs:
    """[draws, streams, width]."""
    return (((draws, slot.shape[0], width), torch.float32),)


def draw_main(logits: Tensor, *_: Any, **__: Any) -> Outputs:
    """Main token and code 0: [streams, 2]."""
    return (((logits.shape[0], 2), torch.int32),)


def draw_code(logits: Tensor, *_: Any, **__: Any) -> Outputs:
    """One code a stream."""
    return (((logits.shape[0],), torch.int32),)


def op_specs(ranks: int) -> Mapping[str, OpSpec]:
    """The spec of every op of a table whose collectives span so many ranks, by the op's name."""

    def all_gather(x: Tensor, *_: Any, **__: Any) -> Outputs:
        return (((*x.shape[:-1], x.shape[-1] * ranks), x.dtype),)

    specs: Sequence[OpSpec] = (
        OpSpec("linear", (), (), linear),
        OpSpec("rms_norm", (), (), like),
        OpSpec("causal_conv", ("tail",), (), like),
        OpSpec("delta_rule", ("state",), (), delta_rule),
        OpSpec("delta_rule_chunked", ("state",), (), delta_rule),
        OpSpec("gated_norm", (), (), gated_norm),
        OpSpec("qk_norm_rope", (), (), qk_norm_rope),
        OpSpec("attend", ("pages",), ("spans.length",), attend),
        OpSpec("router", (), (), router),
        OpSpec("experts", (), (), experts),
        OpSpec("embed", (), (), embed),
        OpSpec("extra_codes", (), (), extra_codes),
        OpSpec("tower_input", (), (), tower_input),
        OpSpec("gather_rows", (), (), gather_rows),
        OpSpec("noise", (), (), noise),
        OpSpec("draw_main", (), (), draw_main),
        OpSpec("draw_code", (), (), draw_code),
        OpSpec("write_frame", ("state",), (), nothing),
        OpSpec("all_reduce", (), (), like),
        OpSpec("all_gather", (), (), all_gather),
    )
    return {spec.name: spec for spec in specs}


SPECS: Mapping[str, OpSpec] = op_specs(ranks=1)
"""The specs of one rank alone."""
