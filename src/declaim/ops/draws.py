"""The draws: temperature, top-k, top-p and the Gumbel race, on descending candidates.

u is read by candidate index, never by rank, so that a draw does not depend on the order of ties.
"""

import torch
from torch import Tensor

from declaim.ops.table import Band
from declaim.state.frames import SamplingTensors

LEAST_TEMPERATURE = 1e-5


def descending(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Values and candidate indices, largest first, ties by lowest index; [streams, candidates]."""
    ordered = logits.float().sort(dim=-1, descending=True, stable=True)
    return ordered.values, ordered.indices


def race(
    ordered: tuple[Tensor, Tensor],
    u: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    *,
    keep_crossing: bool,
) -> Tensor:
    """One draw a stream: candidate index int64 [streams].

    temperature, top_k, top_p [streams]. top-p drops a candidate once the probability of the
    larger ones (keep_crossing), or that and its own (not), is over top_p; the largest always
    stays, and top_p = 1 drops none. The winner has the largest log p - log(-log u).
    """
    values, indices = ordered
    scaled = values / temperature.clamp(min=LEAST_TEMPERATURE)[:, None]
    cumulated = torch.softmax(scaled, -1).cumsum(-1)
    over = cumulated > top_p[:, None]
    if keep_crossing:
        over = torch.cat([torch.zeros_like(over[:, :1]), over[:, :-1]], -1)
    rank = torch.arange(values.shape[1], device=values.device)
    dropped = (over & (top_p < 1.0)[:, None]) | (rank >= top_k[:, None])
    dropped &= rank > 0
    gumbel = -torch.log(-torch.log(u.gather(1, indices)))
    winner = (scaled + gumbel).masked_fill(dropped, -torch.inf).argmax(-1, keepdim=True)
    return indices.gather(1, winner)[:, 0]


def race_or_largest(
    ordered: tuple[Tensor, Tensor],
    u: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    *,
    keep_crossing: bool,
) -> Tensor:
    """`race`, but the largest candidate where the temperature is 0."""
    drawn = race(ordered, u, temperature, top_k, top_p, keep_crossing=keep_crossing)
    return torch.where(temperature == 0.0, ordered[1][:, 0], drawn)


def draw_main(
    logits: Tensor,
    u: Tensor,
    parameters: SamplingTensors,
    window: Tensor,
    candidates: Tensor,
    slot: Tensor,
    band: Band,
) -> Tensor:
    """Main token and code 0, int32 [streams, 2]; see the op table."""
    index = slot.long()
    ordered = descending(logits)
    width = logits.shape[1]
    first = race_or_largest(
        ordered,
        u[0, :, :width],
        parameters.temperature[index],
        parameters.top_k[index],
        parameters.top_p[index],
        keep_crossing=True,
    )
    second = race(
        ordered,
        u[1, :, :width],
        parameters.ras_temperature[index],
        parameters.ras_top_k[index],
        parameters.ras_top_p[index],
        keep_crossing=True,
    )
    token, other = candidates[first], candidates[second]
    semantic = (token >= band[0]) & (token <= band[1])
    repeated = (window[index] == token[:, None]).any(-1)
    taken = semantic & repeated & (parameters.ras_enabled[index] != 0)
    main = torch.where(taken, other, token)
    code = (main - band[0]).clamp(0, band[1] - band[0])
    return torch.stack([main, code], -1).int()


def draw_code(logits: Tensor, u: Tensor, parameters: SamplingTensors, slot: Tensor) -> Tensor:
    """One code, int32 [streams]; see the op table."""
    index = slot.long()
    drawn = race_or_largest(
        descending(logits),
        u[:, : logits.shape[1]],
        parameters.temperature[index],
        parameters.code_top_k[index],
        parameters.top_p[index],
        keep_crossing=False,
    )
    return drawn.int()
