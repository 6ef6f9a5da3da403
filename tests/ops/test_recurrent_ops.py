"""The causal convolution and the delta rule: against float64, and under every cut of a stream."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from op_memory import CUTS, Memory, Part, Stream, beside, drive
from row_checks import near
from torch import Tensor

from declaim.ops.reference import ReferenceOps
from declaim.state.step import Spans, training_spans

Normal = Callable[..., Tensor]
KERNEL = 4
OTHERS = (60, 31)


@dataclass(frozen=True)
class Layer:
    """One delta-net layer's op on rows of [qkv | b | a]."""

    ops: ReferenceOps
    heads: tuple[int, int]
    widths: tuple[int, int]
    a_log: Tensor
    dt_bias: Tensor
    chunked: bool = False

    @property
    def columns(self) -> int:
        keys = 2 * self.heads[0] * self.widths[0]
        return keys + self.heads[1] * (self.widths[1] + 2)

    def state(self, memory: Memory, dtype: torch.dtype = torch.float32) -> Tensor:
        return memory.slot_state(self.heads[1], *self.widths, dtype=dtype)

    def __call__(self, rows: Tensor, spans: Spans, state: Tensor | None) -> Tensor:
        value_heads = self.heads[1]
        split = [self.columns - 2 * value_heads, value_heads, value_heads]
        qkv, b, a = rows.split(split, -1)
        op = self.ops.delta_rule_chunked if self.chunked else self.ops.delta_rule
        handles = self.ops.prepare_vector(self.a_log), self.ops.prepare_vector(self.dt_bias)
        return op(qkv, b, a, *handles, spans, state, heads=self.heads, widths=self.widths)

    def naive(self, rows: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs and last state of one stream, loop by loop in float64."""
        (key_heads, value_heads), (dk, dv) = self.heads, self.widths
        outputs = torch.zeros(len(rows), value_heads, dv, dtype=torch.float64)
        state = state.double().clone()
        for t, row in enumerate(rows.double()):
            keys, values = row[: 2 * key_heads * dk], row[2 * key_heads * dk :]
            q, k = keys.view(2, key_heads, dk)
            v, b, a = values.split([value_heads * dv, value_heads, value_heads])
            for h in range(value_heads):
                source = h * key_heads // value_heads
                query = q[source] / torch.sqrt((q[source] ** 2).sum() + 1e-6) / dk**0.5
                key = k[source] / torch.sqrt((k[source] ** 2).sum() + 1e-6)
                step = torch.log1p(torch.exp(a[h] + self.dt_bias[h].double()))
                s = state[h] * torch.exp(-torch.exp(self.a_log[h].double()) * step)
                error = v.view(value_heads, dv)[h] - key @ s
                state[h] = s + torch.outer(key, error * torch.sigmoid(b[h]))
                outputs[t, h] = query @ state[h]
        return outputs, state


@pytest.fixture
def layer(ops: ReferenceOps, normal: Normal) -> Callable[..., Layer]:
    def make(heads: tuple[int, int], widths: tuple[int, int], chunked: bool = False) -> Layer:
        a_log, dt_bias = normal(heads[1]), normal(heads[1])
        return Layer(ops, heads, widths, a_log, dt_bias, chunked)

    return make


def naive_conv(x: Tensor, weight: Tensor, tail: Tensor) -> Tensor:
    """silu of the convolution of one stream, tap by tap in float64."""
    history = torch.cat([tail, x]).double()
    y = torch.zeros(x.shape, dtype=torch.float64)
    for t in range(len(x)):
        for tap in range(weight.shape[1]):
            y[t] += history[t + tap] * weight[:, tap].double()
    return y * torch.sigmoid(y)


@pytest.mark.parametrize("channels", [1, 24, 33, 192])
@pytest.mark.parametrize("kernel", [1, 2, KERNEL])
def test_causal_conv(ops: ReferenceOps, normal: Normal, channels: int, kernel: int) -> None:
    weight = normal(channels, kernel)
    handle = ops.prepare_conv(weight)
    memory = Memory()
    for count in (1, 2, 3, 5, 8, 17, 33):
        tail, before = memory.slot_state(kernel - 1, channels), normal(kernel - 1, channels)
        tail[1] = before
        x = normal(count, channels)
        found = ops.causal_conv(x, handle, memory.spans([Part(1, 5, count)]), tail)
        near(found, naive_conv(x, weight, before))
        assert torch.equal(tail[1], torch.cat([before, x])[count:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_causal_conv_under_every_cut(
    ops: ReferenceOps, normal: Normal, threads: int, dtype: torch.dtype
) -> None:
    channels = 432
    handle = ops.prepare_conv(normal(channels, KERNEL))
    memory = Memory()

    def conv(x: Tensor, spans: Spans, tail: Tensor) -> Tensor:
        return ops.causal_conv(x.to(dtype), handle, spans, tail)

    def state(slots: Sequence[int]) -> Tensor:
        tail = memory.slot_state(KERNEL - 1, channels, dtype=dtype)
        tail[list(slots)] = 0.0
        return tail

    rows = [normal(count, channels).to(dtype) for count in (97, *OTHERS)]
    alone = []
    for x in rows:
        tail = state([2])
        spans = memory.spans([Part(2, 0, len(x))])
        alone.append((conv(x, spans, tail), tail[2]))
        assert alone[-1][0].dtype == dtype
    for turn, cuts in enumerate(CUTS):
        slots = [turn % 4, (turn + 1) % 4, (turn + 2) % 4]
        streams = [Stream(x, slot) for x, slot in zip(rows, slots, strict=True)]
        tail = state(slots)
        op = partial(conv, tail=tail)
        found = drive(memory, streams, beside(cuts, OTHERS), op, padding=turn % 3)
        for number, (outputs, last) in enumerate(alone):
            ran = len(found[number])
            assert torch.equal(found[number], outputs[:ran])
            if ran == len(rows[number]):
                assert torch.equal(tail[slots[number]], last)
        assert tail[(turn + 3) % 4].isnan().all(), "a free slot was written"
        assert tail[-1].isfinite().all()


@pytest.mark.parametrize(
    ("heads", "widths"), [((1, 1), (24, 24)), ((2, 4), (16, 33)), ((1, 8), (24, 16))]
)
def test_delta_rule(
    layer: Callable[..., Layer], normal: Normal, heads: tuple[int, int], widths: tuple[int, int]
) -> None:
    made = layer(heads, widths)
    memory = Memory()
    for count in (1, 2, 3, 5, 8, 17, 33):
        state, before = made.state(memory), normal(heads[1], *widths)
        state[1] = before
        rows = normal(count, made.columns)
        found = made(rows, memory.spans([Part(1, 0, count)]), state)
        outputs, last = made.naive(rows, before)
        near(found, outputs)
        near(state[1], last)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_delta_rule_under_every_cut(
    layer: Callable[..., Layer], normal: Normal, threads: int, dtype: torch.dtype
) -> None:
    """With a bfloat16 state too: it is rounded after every row."""
    made = layer((4, 8), (24, 24))
    memory = Memory()

    def fresh(slots: Sequence[int]) -> Tensor:
        state = made.state(memory, dtype)
        state[list(slots)] = 0.0
        return state

    rows = [normal(count, made.columns) for count in (97, *OTHERS)]
    alone = []
    for x in rows:
        state = fresh([2])
        outputs = made(x, memory.spans([Part(2, 0, len(x))]), state)
        alone.append((outputs, state[2]))
    for turn, cuts in enumerate(CUTS):
        slots = [turn % 4, (turn + 1) % 4, (turn + 2) % 4]
        streams = [Stream(x, slot) for x, slot in zip(rows, slots, strict=True)]
        state = fresh(slots)
        op = partial(made, state=state)
        found = drive(memory, streams, beside(cuts, OTHERS), op, padding=turn % 3)
        for number, (outputs, last) in enumerate(alone):
            ran = len(found[number])
            assert torch.equal(found[number], outputs[:ran])
            if ran == len(rows[number]):
                assert torch.equal(state[slots[number]], last)
        assert state[(turn + 3) % 4].isnan().all(), "a free slot was written"
        assert state[-1].isfinite().all()


def test_a_bfloat16_state_is_rounded_after_every_row(
    layer: Callable[..., Layer], normal: Normal
) -> None:
    """Row by row from the rounded state, by the float32 op, is the same."""
    made = layer((2, 4), (24, 24))
    memory = Memory()
    rows = normal(9, made.columns)
    rounded, wide = made.state(memory, torch.bfloat16), made.state(memory)
    rounded[0] = wide[0] = 0.0
    found = made(rows, memory.spans([Part(0, 0, 9)]), rounded)
    for t in range(9):
        made(rows[t : t + 1], memory.spans([Part(0, t, 1)]), wide)
        wide[0] = wide[0].bfloat16().float()
    assert torch.equal(rounded[0].float(), wide[0])
    assert found.dtype == torch.float32


def test_bfloat16_rows_give_bfloat16_results(layer: Callable[..., Layer], normal: Normal) -> None:
    made = layer((2, 4), (24, 24))
    rows = normal(9, made.columns).bfloat16()
    spans = training_spans([9])
    assert torch.equal(made(rows, spans, None), made(rows.float(), spans, None).bfloat16())


@pytest.mark.parametrize("kind", ["conv", "rule"])
def test_later_rows_and_other_slots_may_hold_anything(
    ops: ReferenceOps, layer: Callable[..., Layer], normal: Normal, kind: str
) -> None:
    made = layer((2, 4), (24, 24))
    memory = Memory()
    conv = ops.prepare_conv(normal(made.columns, KERNEL))
    rows = normal(12, made.columns)

    def run(x: Tensor, parts: list[Part]) -> tuple[Tensor, Tensor]:
        if kind == "conv":
            state = memory.slot_state(KERNEL - 1, made.columns)
        else:
            state = made.state(memory)
        state[[0, 1]] = 0.0
        spans = memory.spans(parts, padding=len(x) - sum(part.count for part in parts))
        if kind == "conv":
            return ops.causal_conv(x, conv, spans, state), state
        return made(x, spans, state), state

    clean, _ = run(rows, [Part(0, 0, 8), Part(1, 0, 4)])
    wild = rows.clone()
    wild[5], wild[6], wild[7] = torch.nan, torch.inf, -torch.inf
    found, state = run(wild, [Part(0, 0, 8), Part(1, 0, 4)])
    untouched = [0, 1, 2, 3, 4, 8, 9, 10, 11]
    assert found[untouched].isfinite().all()
    assert torch.equal(found[untouched], clean[untouched])
    assert state[[2, 3]].isnan().all()
    padded, state = run(rows, [Part(0, 0, 8)])
    assert torch.equal(padded[:8], clean[:8])
    assert state[1].eq(0.0).all() and state[-1].isfinite().all() and state[[2, 3]].isnan().all()


def test_spans_without_state_start_from_nothing(
    ops: ReferenceOps, layer: Callable[..., Layer], normal: Normal
) -> None:
    """As from a zeroed slot, each sequence for itself, and gradients flow."""
    made = layer((2, 4), (24, 24))
    conv = ops.prepare_conv(normal(made.columns, KERNEL))
    memory = Memory()
    rows = normal(15, made.columns)
    tail, state = memory.slot_state(KERNEL - 1, made.columns), made.state(memory)
    tail[[0, 1]] = state[[0, 1]] = 0.0
    spans = memory.spans([Part(0, 0, 9), Part(1, 0, 6)])
    free = training_spans([9, 6])
    mixed = ops.causal_conv(rows, conv, free, None)
    assert torch.equal(mixed, ops.causal_conv(rows, conv, spans, tail))
    assert torch.equal(made(mixed, free, None), made(mixed, spans, state))
    leaf = rows.clone().requires_grad_()
    y = made(ops.causal_conv(leaf, conv, free, None), free, None)
    y[9:].sum().backward()
    assert leaf.grad is not None
    assert leaf.grad[9:].abs().sum() > 0 and leaf.grad[:9].eq(0.0).all()


@pytest.mark.parametrize("length", [1, 63, 64, 65, 127, 128, 129, 513])
@pytest.mark.parametrize("incoming", [False, True])
def test_the_chunked_form_is_near(
    layer: Callable[..., Layer], normal: Normal, length: int, incoming: bool
) -> None:
    exact = layer((2, 4), (24, 40))
    chunked = Layer(exact.ops, exact.heads, exact.widths, exact.a_log, exact.dt_bias, True)
    memory = Memory()
    rows = normal(length + 70, exact.columns)
    spans = memory.spans([Part(3, 0, length), Part(0, 0, 70)])
    before = normal(4, 24, 40) if incoming else torch.zeros(4, 24, 40)
    one, other = exact.state(memory), exact.state(memory)
    one[[0, 3]] = other[[0, 3]] = before
    wanted, found = exact(rows, spans, one), chunked(rows, spans, other)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(other[[0, 3]], one[[0, 3]], rtol=1e-4, atol=2e-5)
    assert other[[1, 2]].isnan().all() and other[-1].eq(0.0).all()
    if not incoming:
        free = training_spans([length, 70])
        assert torch.equal(chunked(rows, free, None), found)
