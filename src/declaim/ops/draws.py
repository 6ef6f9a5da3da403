"""Noise of a frame and the draws made with it. No host synchronisation.

A draw keeps a set of candidates by top-k and top-p over the stable descending order of their
logits, and takes the arg max of log p - log(-log u) over it, u indexed by candidate.
"""

import torch
from torch import Tensor

from declaim.ops.elementwise import store
from declaim.ops.frames import is_semantic
from declaim.ops.philox import uniform
from declaim.ops.table import Band
from declaim.state.frames import SamplingTensors

LEAST_TEMPERATURE = 1e-5
"""Lower temperatures are raised to this; exactly 0 is arg max."""


def draw_rank(
    ordered: Tensor,
    u: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    keep_crossing: bool,
) -> Tensor:
    """The rank that a draw takes, int64 [..., 1].

    ordered [..., C]: logits in descending order; u [..., C] in the same order; temperature,
    top_p and top_k [..., 1]. keep_crossing: whether the candidate that crosses top_p stays.
    """
    scaled = ordered / temperature.clamp(min=LEAST_TEMPERATURE)
    total = scaled.softmax(-1).cumsum(-1)
    if keep_crossing:
        total = torch.cat((torch.zeros_like(total[..., :1]), total[..., :-1]), dim=-1)
    rank = torch.arange(ordered.shape[-1], device=ordered.device)
    dropped = (total > top_p) & (top_p < 1.0) | (rank >= top_k)
    dropped[..., 0] = False
    score = (scaled - scaled[..., :1]).sub_(u.log().neg_().log_())
    return score.masked_fill_(dropped, float("-inf")).argmax(-1, keepdim=True)


class DrawOps:
    """`noise`, `draw_main` and `draw_code`."""

    def noise(
        self,
        seed: Tensor,
        counter: Tensor,
        slot: Tensor,
        *,
        draws: int,
        width: int,
        out: Tensor | None = None,
    ) -> Tensor:
        """See OpTable."""
        seeds, frames = seed.index_select(0, slot), counter.index_select(0, slot)
        return store(uniform(seeds, frames, draws=draws, width=width).contiguous(), out)

    def draw_main(
        self,
        logits: Tensor,
        u: Tensor,
        parameters: SamplingTensors,
        window: Tensor,
        candidates: Tensor,
        slot: Tensor,
        *,
        band: Band,
        out: Tensor | None = None,
    ) -> Tensor:
        """See OpTable."""
        ordered, order = logits.float().sort(dim=-1, descending=True, stable=True)
        index = order.expand(2, *order.shape)

        def both(plain: Tensor, repetition: Tensor) -> Tensor:
            return torch.stack((plain, repetition)).index_select(1, slot)[..., None]

        temperature = both(parameters.temperature, parameters.ras_temperature)
        rank = draw_rank(
            ordered,
            u[:2, :, : logits.shape[1]].gather(-1, index),
            temperature,
            both(parameters.top_p, parameters.ras_top_p),
            both(parameters.top_k, parameters.ras_top_k),
            keep_crossing=True,
        )
        # A temperature of 0 makes the first draw an arg max; the second one still draws.
        first = rank[0].masked_fill(temperature[0] == 0.0, 0)
        tokens = candidates[order.gather(-1, torch.cat((first, rank[1]), dim=-1))]
        plain, repetition = tokens.unbind(-1)
        seen = (window.index_select(0, slot) == plain[:, None]).any(-1)
        enabled = parameters.ras_enabled.index_select(0, slot) != 0
        taken = enabled & seen & is_semantic(plain, band)
        main = torch.where(taken, repetition, plain)
        code = (main - band[0]).clamp(0, band[1] - band[0])
        return store(torch.stack((main, code), dim=-1), out)

    def draw_code(
        self,
        logits: Tensor,
        u: Tensor,
        parameters: SamplingTensors,
        slot: Tensor,
        *,
        out: Tensor | None = None,
    ) -> Tensor:
        """See OpTable."""
        ordered, order = logits.float().sort(dim=-1, descending=True, stable=True)

        def of(parameter: Tensor) -> Tensor:
            return parameter.index_select(0, slot)[:, None]

        temperature = of(parameters.temperature)
        rank = draw_rank(
            ordered,
            u[:, : logits.shape[1]].gather(-1, order),
            temperature,
            of(parameters.top_p),
            of(parameters.code_top_k),
            keep_crossing=False,
        )
        rank = rank.masked_fill(temperature == 0.0, 0)
        return store(order.gather(-1, rank)[:, 0].to(torch.int32), out)
