"""Routed experts: which rows go where, and their sum in ascending expert id."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from declaim.ops.activations import silu
from declaim.ops.block_fp8 import decode
from declaim.ops.table import BlockFP8, ExpertWeight
from declaim.ops.tiles import TiledWeight, tile_product, tiled_weight


@dataclass(frozen=True)
class ExpertWeights:
    """One layer's experts by id: gate_up [hidden, 2 * width], down [width, hidden]."""

    gate_up: tuple[TiledWeight, ...]
    down: tuple[TiledWeight, ...]


def expert_weights(gate_up: Sequence[ExpertWeight], down: Sequence[ExpertWeight]) -> ExpertWeights:
    """Take each expert once, in order; block-FP8 is decoded."""

    def tiled(weights: Sequence[ExpertWeight]) -> tuple[TiledWeight, ...]:
        return tuple(
            tiled_weight(decode(weight) if isinstance(weight, BlockFP8) else weight)
            for weight in weights
        )

    return ExpertWeights(tiled(gate_up), tiled(down))


def route(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Softmax over all experts, the top_k with ties to the lowest id, renormalised."""
    probability = torch.softmax(logits, -1)
    ordered = probability.sort(dim=-1, descending=True, stable=True)
    top, ids = ordered.values[:, :top_k], ordered.indices[:, :top_k]
    return top / top.sum(-1, keepdim=True), ids.int()


def add_experts(
    x: Tensor, weights: Tensor, ids: Tensor, experts: ExpertWeights, base: Tensor
) -> Tensor:
    """base + sum over chosen experts of weight * down(silu(gate x) * up x), float32.

    A row adds its experts in ascending id, whichever rows share them.
    """
    y = base.float().clone()
    chosen: dict[int, tuple[list[int], list[int]]] = {}
    for row, row_ids in enumerate(ids.tolist()):
        for column, expert in enumerate(row_ids):
            rows, columns = chosen.setdefault(expert, ([], []))
            rows.append(row)
            columns.append(column)
    for expert in sorted(chosen):
        rows, columns = chosen[expert]
        gate, up = tile_product(x[rows], experts.gate_up[expert]).chunk(2, -1)
        made = tile_product(silu(gate) * up, experts.down[expert])
        y[rows] += weights[rows, columns].unsqueeze(-1) * made
    return y
