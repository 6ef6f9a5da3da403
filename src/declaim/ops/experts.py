"""Routed experts of the reference: each expert's rows in tiles, sums in ascending expert id."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from declaim.ops.block_fp8 import decode
from declaim.ops.elementwise import silu, store
from declaim.ops.table import BlockFP8, ExpertWeight
from declaim.ops.tiles import (
    TILE,
    TiledWeight,
    multiply_tiles,
    tile_weight,
    tiled_linear,
    tiles_of,
)


@dataclass(frozen=True)
class ExpertWeights:
    """Every expert's two weights; shape is (experts, hidden, width)."""

    gate_up: tuple[TiledWeight, ...]
    down: tuple[TiledWeight, ...]
    shape: tuple[int, int, int]


@dataclass(frozen=True)
class Grouping:
    """Rows of x gathered by expert.

    gather: row of x for each gathered row (padding repeats row 0). ranges: expert, first and
    last + 1 gathered row. places [n * top_k]: gathered row of each row's experts, in ascending
    expert id; choices: the place of the same among the row's top_k, flattened.
    """

    gather: list[int]
    ranges: list[tuple[int, int, int]]
    places: list[int]
    choices: list[int]


def group_rows(ids: list[list[int]]) -> Grouping:
    """Group the rows of ids [n, top_k] by expert."""
    members: dict[int, list[tuple[int, int]]] = {}
    for row, chosen in enumerate(ids):
        for choice, expert in enumerate(chosen):
            members.setdefault(expert, []).append((row, choice))
    gather: list[int] = []
    ranges: list[tuple[int, int, int]] = []
    places: list[list[int]] = [[] for _ in ids]
    choices: list[list[int]] = [[] for _ in ids]
    for expert in sorted(members):
        first, rows = len(gather), members[expert]
        for offset, (row, choice) in enumerate(rows):
            places[row].append(first + offset)
            choices[row].append(row * len(ids[row]) + choice)
            gather.append(row)
        last = first + tiles_of(len(rows)) * TILE
        gather.extend([0] * (last - len(gather)))
        ranges.append((expert, first, last))
    return Grouping(gather, ranges, sum(places, []), sum(choices, []))


class ExpertOps:
    """`router`, `experts` and their weights."""

    def prepare_experts(
        self, gate_up: Sequence[ExpertWeight], down: Sequence[ExpertWeight]
    ) -> ExpertWeights:
        """See OpTable; each expert is decoded to float32 when it is read."""
        first = tuple(tile_weight(decoded(weight)) for weight in gate_up)
        second = tuple(tile_weight(decoded(weight)) for weight in down)
        hidden, width = second[0].shape
        return ExpertWeights(first, second, (len(first), hidden, width))

    def router(
        self,
        x: Tensor,
        w: TiledWeight,
        *,
        top_k: int,
        out: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """See OpTable."""
        probabilities = tiled_linear(x, w).softmax(-1)
        ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
        chosen = ordered[:, :top_k].contiguous()
        weights = chosen / chosen.sum(-1, keepdim=True)
        ids = order[:, :top_k].to(torch.int32)
        if out is None:
            return weights, ids
        return out[0].copy_(weights), out[1].copy_(ids)

    def experts(
        self,
        x: Tensor,
        weights: Tensor,
        ids: Tensor,
        w: ExpertWeights,
        base: Tensor,
        *,
        out: Tensor | None = None,
    ) -> Tensor:
        """See OpTable; the base comes first in the sum."""
        rows, top_k = ids.shape
        _, hidden, width = w.shape
        grouping = group_rows(ids.tolist())
        gathered = x.float().index_select(0, _index(grouping.gather, x))
        inner = torch.cat(
            [
                multiply_tiles(gathered[first:last], w.gate_up[expert].matrix)
                for expert, first, last in grouping.ranges
            ]
        )
        active = silu(inner[:, :width]).mul_(inner[:, width : 2 * width])
        result = torch.cat(
            [
                multiply_tiles(active[first:last], w.down[expert].matrix)
                for expert, first, last in grouping.ranges
            ]
        )
        parts = result.index_select(0, _index(grouping.places, x))
        factors = weights.flatten().index_select(0, _index(grouping.choices, x))
        parts = parts[:, :hidden].mul_(factors[:, None]).view(rows, top_k, hidden)
        total = torch.add(base.float(), parts[:, 0])
        for choice in range(1, top_k):
            total.add_(parts[:, choice])
        return store(total.to(x.dtype), out)


def decoded(weight: ExpertWeight) -> Tensor:
    """A dense weight for either kind of expert weight."""
    return decode(weight) if isinstance(weight, BlockFP8) else weight


def _index(values: list[int], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=like.device)
