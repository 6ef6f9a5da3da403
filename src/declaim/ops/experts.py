"""Routed experts: which rows go where, and their sum in ascending expert id."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from declaim.ops.activations import silu
from declaim.ops.block_fp8 import decode
from declaim.ops.table import BlockFP8, ExpertWeight
from declaim.ops.tiles import TILE_ROWS, TiledWeight, batch_product, tiled_weight


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
    ordered, order = ids.sort(-1)
    rows, place, tiles = _tiles(ordered.tolist())
    both = _product(x.float()[rows], tiles, experts.gate_up)
    gate, up = both.chunk(2, -1)
    made = _product(silu(gate) * up, tiles, experts.down).flatten(0, 1)[place]
    made = made * weights.gather(1, order).unsqueeze(-1)  # [n, top_k, hidden]
    y = base.float()
    for turn in made.unbind(1):
        y = y + turn
    return y


def _tiles(ids: list[list[int]]) -> tuple[Tensor, Tensor, dict[int, int]]:
    """Rows in tiles, each of one expert; ids [n, top_k] ascending in a row.

    Rows of the tiles [tiles, 4], where row and turn of `ids` stand among them [n, top_k], and how
    many tiles each expert has, in their order. A tile that is not full repeats a row.
    """
    members: dict[int, list[tuple[int, int]]] = {}
    for row, chosen in enumerate(ids):
        for turn, expert in enumerate(chosen):
            members.setdefault(expert, []).append((row, turn))
    rows: list[int] = []
    place = [[0] * len(chosen) for chosen in ids]
    tiles: dict[int, int] = {}
    for expert, pairs in members.items():
        for index, (row, turn) in enumerate(pairs, start=len(rows)):
            place[row][turn] = index
        tiles[expert] = -(-len(pairs) // TILE_ROWS)
        rows += [row for row, _ in pairs]
        rows += rows[-1:] * (-len(pairs) % TILE_ROWS)
    return torch.tensor(rows).view(-1, TILE_ROWS), torch.tensor(place), tiles


def _product(x: Tensor, tiles: dict[int, int], weights: tuple[TiledWeight, ...]) -> Tensor:
    """Tiles [tiles, 4, K] times the weights of their experts: [tiles, 4, N]."""
    parts = x.split(list(tiles.values()))
    made = [
        batch_product(part, weights[expert].matrix.expand(len(part), -1, -1))
        for expert, part in zip(tiles, parts, strict=True)
    ]
    return torch.cat(made)[..., : weights[0].columns]
