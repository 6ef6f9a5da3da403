"""The exact PyTorch reference of the op table: readable, on any torch device, the oracle.

A row's bytes depend on the row and its own context alone. Arithmetic is float32, whatever the
dtype of the operands; results have the dtype of x. Every method's contract stands in the table.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from declaim.ops import attention, delta_rule, draws, experts, philox
from declaim.ops import frames as frame_rows
from declaim.ops.activations import sigmoid, silu
from declaim.ops.table import Band, Collectives, ExpertWeight, Handle
from declaim.ops.tiles import tile_product, tiled_weight
from declaim.state.frames import FrameState, SamplingTensors
from declaim.state.pages import Pages
from declaim.state.step import Spans


@dataclass(frozen=True)
class VectorWeight:
    """float32 [width] as stored, and one more than it (a zero-centred norm's factor)."""

    plain: Tensor
    centred: Tensor

    @property
    def shape(self) -> torch.Size:
        """[width]."""
        return self.plain.shape


def stored(result: Tensor, out: Tensor | None) -> Tensor:
    """The result, or `out` holding it."""
    return result if out is None else out.copy_(result)


def stored_pair(
    result: tuple[Tensor, Tensor], out: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor]:
    """As `stored`, for two."""
    if out is None:
        return result
    return stored(result[0], out[0]), stored(result[1], out[1])


def normed(x: Tensor, factor: Tensor | float, eps: float) -> Tensor:
    """float32 x * rsqrt(mean(x^2) + eps) * factor."""
    wide = x.float()
    return wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps) * factor


class ReferenceOps:
    """One op table; see the module's docstring."""

    name = "reference"
    exact = True

    def __init__(self, collectives: Collectives) -> None:
        self.collectives = collectives
        self._frequencies: dict[tuple[int, float], Tensor] = {}
        self._reader = attention.ContextReader()

    def prepare_linear(self, weight: Tensor) -> Handle:
        """Transposed and padded, float32."""
        return tiled_weight(weight)

    def prepare_vector(self, weight: Tensor) -> Handle:
        """float32."""
        plain = weight.float()
        return VectorWeight(plain, 1.0 + plain)

    def prepare_conv(self, weight: Tensor) -> Tensor:
        """float32."""
        return weight.float()

    def prepare_table(self, weight: Tensor) -> Tensor:
        """As stored; rows are widened after they are gathered."""
        return weight.clone()

    def prepare_experts(
        self, gate_up: Sequence[ExpertWeight], down: Sequence[ExpertWeight]
    ) -> Handle:
        """Each expert as a linear weight."""
        return experts.expert_weights(gate_up, down)

    def _product(self, x: Tensor, w: Handle) -> Tensor:
        """x W^T, float32."""
        return tile_product(x, w)

    def _vector(self, weight: Handle, *, centred: bool = False) -> Tensor:
        """float32 [width]: the vector, or one more than it."""
        vector: Tensor = weight.centred if centred else weight.plain
        return vector

    def _attended(
        self, q: Tensor, k: Tensor, v: Tensor, spans: Spans, pages: Pages | None
    ) -> Tensor:
        """Attention without the gate, float32."""
        return attention.attend(q, k, v, spans, pages, self._reader)

    def linear(
        self,
        x: Tensor,
        w: Handle,
        base: Tensor | None = None,
        scale: Tensor | None = None,
        *,
        epilogue: str = "store",
        out: Tensor | None = None,
    ) -> Tensor:
        """Row tiles, then the epilogue in float32."""
        y = self._product(x, w)
        if epilogue == "silu_mul":
            gate, up = y.chunk(2, -1)
            y = silu(gate) * up
        elif epilogue == "add":
            assert base is not None
            y = base.float() + y
        elif epilogue == "scaled_add":
            assert base is not None and scale is not None
            y = base.float() + sigmoid(scale.float()) * y
        else:
            assert epilogue == "store", epilogue
        return stored(y.to(x.dtype), out)

    def rms_norm(
        self,
        x: Tensor,
        weight: Handle,
        *,
        eps: float,
        zero_centred: bool,
        out: Tensor | None = None,
    ) -> Tensor:
        """The product in float32, then the cast."""
        factor = self._vector(weight, centred=zero_centred)
        return stored(normed(x, factor, eps).to(x.dtype), out)

    def causal_conv(
        self,
        x: Tensor,
        weight: Tensor,
        spans: Spans,
        tail: Tensor | None,
        *,
        out: Tensor | None = None,
    ) -> Tensor:
        """Taps oldest first."""
        y = delta_rule.causal_conv(x.float(), weight, spans, tail)
        return stored(y.to(x.dtype), out)

    def delta_rule(
        self,
        qkv: Tensor,
        b: Tensor,
        a: Tensor,
        a_log: Handle,
        dt_bias: Handle,
        spans: Spans,
        state: Tensor | None,
        *,
        heads: tuple[int, int],
        widths: tuple[int, int],
        out: Tensor | None = None,
    ) -> Tensor:
        """Row by row."""
        inputs = delta_rule.delta_inputs(
            qkv, b, a, self._vector(a_log), self._vector(dt_bias), heads=heads, widths=widths
        )
        return stored(delta_rule.delta_rule(inputs, spans, state).to(qkv.dtype), out)

    def delta_rule_chunked(
        self,
        qkv: Tensor,
        b: Tensor,
        a: Tensor,
        a_log: Handle,
        dt_bias: Handle,
        spans: Spans,
        state: Tensor | None,
        *,
        heads: tuple[int, int],
        widths: tuple[int, int],
        out: Tensor | None = None,
    ) -> Tensor:
        """Chunks of 64 rows; depends on the cut."""
        inputs = delta_rule.delta_inputs(
            qkv, b, a, self._vector(a_log), self._vector(dt_bias), heads=heads, widths=widths
        )
        return stored(delta_rule.delta_rule_chunked(inputs, spans, state).to(qkv.dtype), out)

    def gated_norm(
        self, o: Tensor, z: Tensor, weight: Handle, *, eps: float, out: Tensor | None = None
    ) -> Tensor:
        """Norm before gate; the normed value takes o's dtype in between."""
        y = normed(o, 1.0, eps).to(o.dtype) * self._vector(weight).to(o.dtype)
        return stored((y.flatten(1).float() * silu(z.float())).to(o.dtype), out)

    def qk_norm_rope(
        self,
        q: Tensor,
        k: Tensor,
        q_weight: Handle,
        k_weight: Handle,
        position: Tensor,
        *,
        eps: float,
        rotary: int,
        theta: float,
        interleaved: bool,
        out: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Norm in float32, cast, then rotation in float32."""
        frequencies = self._inverse_frequencies(rotary, theta).to(position.device)
        angle = position.float()[:, None] * frequencies
        turn = (angle.cos()[:, None], angle.sin()[:, None])
        rows, width = q.shape[0], q_weight.shape[0]
        queries, keys = q.shape[1] // width, k.shape[1] // width
        factors = (
            self._vector(weight, centred=True).expand(heads, width)
            for weight, heads in ((q_weight, queries), (k_weight, keys))
        )
        both = torch.cat([q, k], 1).view(rows, queries + keys, width)
        both = normed(both, torch.cat([*factors]), eps).to(q.dtype).float()
        both = rotated(both, turn, rotary, interleaved)
        return stored_pair((both[:, :queries].to(q.dtype), both[:, queries:].to(k.dtype)), out)

    def _inverse_frequencies(self, rotary: int, theta: float) -> Tensor:
        if (rotary, theta) not in self._frequencies:
            exponent = torch.arange(0, rotary, 2, dtype=torch.float32) / rotary
            self._frequencies[rotary, theta] = 1.0 / theta**exponent
        return self._frequencies[rotary, theta]

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        gate: Tensor,
        spans: Spans,
        pages: Pages | None,
        *,
        out: Tensor | None = None,
    ) -> Tensor:
        """Blocks of 64 in order, then the gate."""
        y = self._attended(q, k, v.reshape(k.shape), spans, pages)
        return stored((y.to(q.dtype).float() * sigmoid(gate.float())).to(q.dtype), out)

    def router(
        self,
        x: Tensor,
        w: Handle,
        *,
        top_k: int,
        out: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """float32 throughout."""
        return stored_pair(experts.route(self._product(x, w), top_k), out)

    def experts(
        self,
        x: Tensor,
        weights: Tensor,
        ids: Tensor,
        w: Handle,
        base: Tensor,
        *,
        out: Tensor | None = None,
    ) -> Tensor:
        """Only experts that some row chose are computed."""
        return stored(experts.add_experts(x, weights, ids, w, base).to(base.dtype), out)

    def embed(
        self,
        rows: Tensor,
        table: Tensor,
        codebooks: Tensor,
        *,
        band: Band,
        codes: int,
        out: Tensor | None = None,
    ) -> Tensor:
        """float32."""
        return stored(frame_rows.embed(rows, table, codebooks, band, codes), out)

    def extra_codes(
        self,
        rows: Tensor,
        codebooks: Tensor,
        *,
        band: Band,
        first: int,
        out: Tensor | None = None,
    ) -> Tensor:
        """float32."""
        return stored(frame_rows.extra_codes(rows, codebooks, band, first), out)

    def tower_input(
        self,
        h: Tensor,
        frames: Tensor,
        table: Tensor,
        extra: Tensor | None,
        enorm: Handle,
        hnorm: Handle,
        *,
        column: int,
        band: Band,
        eps: float,
        out: Tensor | None = None,
    ) -> Tensor:
        """The embedding's half first."""
        e = frame_rows.code_embedding(frames, table, band, column)
        if extra is not None:
            e = e + extra.float()
        both = [
            normed(part, self._vector(weight, centred=True), eps)
            for part, weight in ((e, enorm), (h, hnorm))
        ]
        return stored(torch.cat(both, -1).to(h.dtype), out)

    def gather_rows(
        self, source: Tensor, index: Tensor, *, keep: bool = False, out: Tensor | None = None
    ) -> Tensor:
        """Rows by index; `keep` needs out."""
        assert out is not None or not keep, "rows to keep need an out"
        return stored(frame_rows.gather_rows(source, index, out if keep else None), out)

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
        """All draws of the step in one call."""
        place = slot.long()
        return stored(philox.uniform(seed[place], counter[place], draws=draws, width=width), out)

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
        """One sort serves both draws."""
        made = draws.draw_main(logits, u, parameters, window, candidates, slot, band)
        return stored(made, out)

    def draw_code(
        self,
        logits: Tensor,
        u: Tensor,
        parameters: SamplingTensors,
        slot: Tensor,
        *,
        out: Tensor | None = None,
    ) -> Tensor:
        """One head's draw."""
        return stored(draws.draw_code(logits, u, parameters, slot), out)

    def write_frame(self, frames: Tensor, slot: Tensor, state: FrameState) -> None:
        """Last frame, window and counter."""
        frame_rows.write_frame(frames, slot, state)

    def all_reduce(self, x: Tensor, *, out: Tensor | None = None) -> Tensor:
        """By the collectives."""
        return stored(self.collectives.all_reduce(x), out)

    def all_gather(self, x: Tensor, *, out: Tensor | None = None) -> Tensor:
        """By the collectives."""
        return stored(self.collectives.all_gather(x), out)


def rotated(x: Tensor, turn: tuple[Tensor, Tensor], rotary: int, interleaved: bool) -> Tensor:
    """RoPE of x float32 [n, heads, width]; turn = cos and sin [n, 1, rotary / 2]."""
    cos, sin = turn
    if interleaved:
        first, second = slice(0, rotary, 2), slice(1, rotary, 2)
    else:
        first, second = slice(0, rotary // 2), slice(rotary // 2, rotary)
    y = x.clone()
    y[..., first] = x[..., first] * cos - x[..., second] * sin
    y[..., second] = x[..., second] * cos + x[..., first] * sin
    return y
