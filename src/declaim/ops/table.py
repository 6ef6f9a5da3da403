"""The op table: everything the network computes, as one typed contract.

Model code computes only through these methods. Rules that every table keeps:

- Each op takes `out=None`; given, the result is written there and returned.
- Ops are functional but for declared effects (`OpSpec.effects`): `causal_conv` on `tail`,
  `delta_rule` on `state`, `attend` on `pages`, `write_frame` on `state`.
- What changes from step to step is a tensor in a fixed buffer; arguments after `*` are static.
- Weights are opaque handles made by `prepare_*` of the same table.
- `spans` says which rows belong to which request. Where `tail`, `state` or `pages` is None,
  every span starts from nothing and the op is differentiable if the table is (training).
- Padding rows belong to the null slot and the null page and have length 0: they may read and
  write only those, and `attend` gives 0 for them.
- The bytes of a row's result never depend on other rows, on their number, on the row's place
  or on the cut, for a table that sets `exact`.

Letters: n rows, H query heads, K key/value heads, D head width, Q codebooks, V entries a
codebook has, C candidates of the main draw.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from declaim.state.frames import FrameState, SamplingTensors
from declaim.state.pages import Pages
from declaim.state.step import Spans

Handle = Any
"""A weight as one op table wants it; opaque to everything else but for its `shape`, which is
that of the tensor it was prepared from (the handle of experts has none)."""

Band = tuple[int, int]
"""First and last main token id of semantic frames, both inside."""


@dataclass(frozen=True)
class BlockFP8:
    """A weight [rows, columns] in float8_e4m3fn with one scale a 128 x 128 block.

    weight [rows, columns]; scale [ceil(rows / 128), ceil(columns / 128)], bfloat16 or float32.
    The value is weight * scale; edge blocks may be short.
    """

    weight: Tensor
    scale: Tensor


ExpertWeight = Tensor | BlockFP8


class Collectives(Protocol):
    """Sums and joins over ranks; no-ops at one rank."""

    @property
    def rank(self) -> int:
        """This process's number, from 0."""

    @property
    def size(self) -> int:
        """How many ranks there are."""

    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum of x over all ranks, in rank order; may write into x."""

    def all_gather(self, x: Tensor) -> Tensor:
        """The ranks' x joined along the last dimension, in rank order."""


@dataclass(frozen=True)
class OpSpec:
    """What is known of an op without running it.

    effects: names of arguments that the op changes, besides `out`. host_arguments: what must be
    refreshed before a replay on platforms that read it on the host and freeze it, named as
    argument or argument.field. outputs: called with the op's own arguments (tensors may be on
    the meta device), gives the shape and dtype of each result, in order.
    """

    name: str
    effects: tuple[str, ...]
    host_arguments: tuple[str, ...]
    outputs: Callable[..., tuple[tuple[tuple[int, ...], torch.dtype], ...]]


class OpTable(Protocol):
    """See the module's docstring for the rules. Shapes in brackets."""

    name: str
    exact: bool
    collectives: Collectives

    # Weights ------------------------------------------------------------------------------

    def prepare_linear(self, weight: Tensor) -> Handle:
        """[rows, columns], as stored (any float dtype), for `linear` and `router`."""

    def prepare_vector(self, weight: Tensor) -> Handle:
        """[width]: norm weights, a_log, dt_bias; float32 in every table."""

    def prepare_conv(self, weight: Tensor) -> Handle:
        """[channels, kernel] for `causal_conv`; column kernel - 1 meets the newest input."""

    def prepare_table(self, weight: Tensor) -> Handle:
        """[rows, width] embedding table for `embed`, `extra_codes` and `tower_input`."""

    def prepare_experts(
        self, gate_up: Sequence[ExpertWeight], down: Sequence[ExpertWeight]
    ) -> Handle:
        """Per expert: gate_up [2 * width, hidden] (gate rows, then up rows), down [hidden, width].

        The sequences may read an expert only when it is asked for: take each once, in order.
        """

    # Dense --------------------------------------------------------------------------------

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
        """y = x W^T [n, rows], then by epilogue:

        store: y. add: base + y. silu_mul: silu(first half of y) * second half, [n, rows / 2].
        scaled_add: base + sigmoid(scale [n, 1]) * y.
        """

    def rms_norm(
        self,
        x: Tensor,
        weight: Handle,
        *,
        eps: float,
        zero_centred: bool,
        out: Tensor | None = None,
    ) -> Tensor:
        """x * rsqrt(mean(x^2) + eps) * (weight, or 1 + weight), over the last dimension."""

    # Delta-net layers ---------------------------------------------------------------------

    def causal_conv(
        self,
        x: Tensor,
        weight: Handle,
        spans: Spans,
        tail: Tensor | None,
        *,
        out: Tensor | None = None,
    ) -> Tensor:
        """silu of the depthwise causal convolution over time; x [n, channels].

        tail [slots + 1, kernel - 1, channels] holds the last raw inputs of each slot, oldest
        first; it is read before and updated after the span.
        """

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
        """The gated delta rule, row by row; returns [n, value heads, value width].

        qkv [n, q | k | v blocks] after the convolution; b and a [n, value heads];
        heads = (key heads, value heads), widths = (key width, value width). Per value head h,
        with the q and k of head h * key heads // value heads, l2-normalised (+1e-6 under the
        root), q scaled by key width ** -0.5:
        S *= exp(-exp(a_log) softplus(a + dt_bias)); S += k (sigmoid(b) (v - k^T S))^T; o = q^T S.
        state [slots + 1, value heads, key width, value width].
        """

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
        """As `delta_rule`, in chunks of 64 rows by triangular solves; not exact under cuts."""

    def gated_norm(
        self, o: Tensor, z: Tensor, weight: Handle, *, eps: float, out: Tensor | None = None
    ) -> Tensor:
        """rms_norm(o) per head with a plain weight, times silu(z); o [n, heads, width],
        z [n, heads * width]; returns [n, heads * width]."""

    # Attention ----------------------------------------------------------------------------

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
        """Zero-centred norm per head, then RoPE on the first `rotary` dimensions.

        q [n, H * D], k [n, K * D], D the width of q_weight; pairs (i, i + rotary / 2), or
        (2 i, 2 i + 1) if interleaved. Returns q [n, H, D] and k [n, K, D]. Pure.
        """

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
        """Causal attention over all rows of the slot, times sigmoid(gate); returns [n, H * D].

        q [n, H, D], k [n, K, D], v [n, K * D], gate [n, H * D]; scale D ** -0.5. First stores
        K and V of the rows at (page, offset), then reads them back as stored.
        """

    # Experts ------------------------------------------------------------------------------

    def router(
        self,
        x: Tensor,
        w: Handle,
        *,
        top_k: int,
        out: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """softmax over all experts in float32, the top_k (ties: lowest id), renormalised.

        Returns weights float32 [n, top_k] and ids int32 [n, top_k].
        """

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
        """base + the weighted sum of the chosen experts' SwiGLU, added in ascending id."""

    # Frames -------------------------------------------------------------------------------

    def embed(
        self,
        rows: Tensor,
        table: Handle,
        codebooks: Handle,
        *,
        band: Band,
        codes: int,
        out: Tensor | None = None,
    ) -> Tensor:
        """Backbone input of frame rows int32 [n, 1 + Q].

        Semantic rows: (E[main] + sum over i = 1..codes of CB[i V + c_i]) / sqrt(1 + codes);
        others: E[main]. Codes are clamped to the codebook.
        """

    def extra_codes(
        self,
        rows: Tensor,
        codebooks: Handle,
        *,
        band: Band,
        first: int,
        out: Tensor | None = None,
    ) -> Tensor:
        """Semantic rows: sum over i = first..Q-1 of CB[i V + c_i]; others 0. [n, dim]"""

    def tower_input(
        self,
        h: Tensor,
        frames: Tensor,
        table: Handle,
        extra: Tensor | None,
        enorm: Handle,
        hnorm: Handle,
        *,
        column: int,
        band: Band,
        eps: float,
        out: Tensor | None = None,
    ) -> Tensor:
        """concat(norm(e, enorm), norm(h, hnorm)) [n, 2 dim], zero-centred norms, where
        e = table[frames[:, column]] on semantic frames, else 0, plus `extra`."""

    def gather_rows(
        self, source: Tensor, index: Tensor, *, keep: bool = False, out: Tensor | None = None
    ) -> Tensor:
        """source[index]; a negative index leaves out's row as it is (keep) or gives zeros."""

    # Draws --------------------------------------------------------------------------------

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
        """Uniform float32 numbers in (0, 1) for all draws of a frame: [draws, streams, width].

        Philox4x32-10 keyed by seed[slot], counter (candidate // 4, draw, counter[slot], 0),
        word candidate % 4, ((word >> 9) + 0.5) * 2^-23. seed and counter int64 [slots + 1].
        """

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
        """Both main draws and the choice between them: int32 [streams, 2] = main token, code 0.

        logits [streams, C], u [draws, streams, width] (draws 0 and 1 are used), candidates
        int32 [C] ascending. The second draw is taken where ras_enabled, the first is semantic
        and stands in window[slot]. code 0 = main - band[0], clamped to the codebook.
        """

    def draw_code(
        self,
        logits: Tensor,
        u: Tensor,
        parameters: SamplingTensors,
        slot: Tensor,
        *,
        out: Tensor | None = None,
    ) -> Tensor:
        """One code draw, int32 [streams]; logits [streams, V], u [streams, width >= V]."""

    def write_frame(self, frames: Tensor, slot: Tensor, state: FrameState) -> None:
        """Store frames int32 [streams, 1 + Q] as the slots' last, shift windows, count one on."""

    # Ranks --------------------------------------------------------------------------------

    def all_reduce(self, x: Tensor, *, out: Tensor | None = None) -> Tensor:
        """Sum over ranks; x itself at one rank."""

    def all_gather(self, x: Tensor, *, out: Tensor | None = None) -> Tensor:
        """The ranks' x joined along the last dimension; x itself at one rank."""
