"""Routed experts: against float64, and a row's bytes whatever stands beside it."""

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from row_checks import near, same_rows
from torch import Tensor

from declaim.ops.block_fp8 import decode, encode
from declaim.ops.reference import ReferenceOps

Normal = Callable[..., Tensor]
Shape = tuple[int, int, int, int]
"""Hidden width, expert width, experts, top_k."""

SHAPES: list[Shape] = [(24, 16, 4, 1), (33, 24, 8, 8), (192, 64, 16, 4), (72, 40, 256, 8)]


def routed(shape: Shape, rows: int, normal: Normal) -> Tensor:
    """Columns x, base, weights and ids of rows; the ids in no order."""
    hidden, _, experts, top_k = shape
    x, base, weights = normal(rows, hidden), normal(rows, hidden), normal(rows, top_k).abs()
    ids = normal(rows, experts).argsort(-1)[:, :top_k]
    return torch.cat([x, base, weights, ids.float()], -1)


def split(rows: Tensor, shape: Shape) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Back from `routed`; a poisoned row goes to experts 0, 1, 2, ..."""
    hidden, _, experts, top_k = shape
    x, base, weights, ids = rows.split([hidden, hidden, top_k, top_k], -1)
    sane = (ids >= 0) & (ids < experts)
    return x, base, weights, torch.where(sane, ids, torch.arange(top_k)).int()


@pytest.mark.parametrize("shape", SHAPES)
def test_experts(ops: ReferenceOps, normal: Normal, threads: int, shape: Shape) -> None:
    hidden, width, count, _ = shape
    gate_up = normal(count, 2 * width, hidden, scale=0.2)
    down = normal(count, hidden, width, scale=0.2)
    handle = ops.prepare_experts(list(gate_up), list(down))
    rows = routed(shape, 44, normal)

    def op(part: Tensor) -> tuple[Tensor, ...]:
        x, base, weights, ids = split(part, shape)
        return (ops.experts(x, weights, ids, handle, base),)

    x, base, weights, ids = split(rows, shape)
    y = torch.einsum("nh,ewh->new", x.double(), gate_up.double())
    gate, up = y.chunk(2, -1)
    made = torch.einsum("new,ehw->neh", gate * torch.sigmoid(gate) * up, down.double())
    chosen = made.gather(1, ids.long()[..., None].expand(-1, -1, hidden))
    near(op(rows)[0], base + (weights.double()[..., None] * chosen).sum(1))
    same_rows(op, rows)


def test_experts_of_a_row_are_added_in_ascending_id(ops: ReferenceOps, normal: Normal) -> None:
    """The order in which the router names them changes nothing."""
    shape = SHAPES[2]
    handle = ops.prepare_experts(list(normal(16, 128, 192)), list(normal(16, 192, 64)))
    x, base, weights, ids = split(routed(shape, 9, normal), shape)
    found = ops.experts(x, weights, ids, handle, base)
    turned = ops.experts(x, weights.flip(1), ids.flip(1), handle, base)
    assert torch.equal(found, turned)


class OnlyOnce(Sequence[Tensor]):
    """Experts that may be read once each, in order."""

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights
        self.taken: list[int] = []

    def __len__(self) -> int:
        return len(self.weights)

    def __getitem__(self, index: object) -> Tensor:  # type: ignore[override]
        raise AssertionError("experts are read in order, by iteration")

    def __iter__(self) -> Iterator[Tensor]:
        for index, weight in enumerate(self.weights):
            self.taken.append(index)
            yield weight


def test_weights_are_read_once_in_order(ops: ReferenceOps, normal: Normal) -> None:
    gate_up, down = OnlyOnce(normal(4, 48, 16)), OnlyOnce(normal(4, 16, 24))
    ops.prepare_experts(gate_up, down)
    assert gate_up.taken == down.taken == [0, 1, 2, 3]


def test_block_fp8_experts_are_their_decoded_ones(ops: ReferenceOps, normal: Normal) -> None:
    gate_up = [encode(weight) for weight in normal(4, 272, 144)]
    down = [encode(weight) for weight in normal(4, 144, 136)]
    packed = ops.prepare_experts(gate_up, down)
    dense = ops.prepare_experts([decode(w) for w in gate_up], [decode(w) for w in down])
    x, base, weights, ids = split(routed((144, 136, 4, 2), 5, normal), (144, 136, 4, 2))
    found = ops.experts(x, weights, ids, packed, base)
    assert torch.equal(found, ops.experts(x, weights, ids, dense, base))


def test_bfloat16_is_rounded_once(ops: ReferenceOps, normal: Normal) -> None:
    shape = SHAPES[2]
    handle = ops.prepare_experts(list(normal(16, 128, 192)), list(normal(16, 192, 64)))
    x, base, weights, ids = split(routed(shape, 9, normal), shape)
    x, base = x.bfloat16(), base.bfloat16()
    exact = ops.experts(x.float(), weights, ids, handle, base.float())
    assert torch.equal(ops.experts(x, weights, ids, handle, base), exact.bfloat16())
