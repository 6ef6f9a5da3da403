"""The differentiable table: every op's results and gradients are the reference's, nearly."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest
import torch
from op_memory import Memory, Part
from torch import Tensor

from declaim.ops.block_fp8 import encode
from declaim.ops.plain import PlainOps, trainable
from declaim.ops.reference import ReferenceOps
from declaim.ops.table import OpTable
from declaim.parallel.ranks import Ranks
from declaim.state.step import training_spans

Normal = Callable[..., Tensor]
Leaves = Mapping[str, Tensor]

LENGTHS = [[1], [5, 2], [70, 1, 129]]
BAND = (10, 21)


@dataclass(frozen=True)
class Case:
    """A call of one op on tensors that want gradients."""

    leaves: Leaves
    call: Callable[[OpTable, Leaves], tuple[Tensor, ...]]


def linear(normal: Normal, lengths: list[int]) -> Case:
    rows = sum(lengths)

    def call(ops: OpTable, on: Leaves) -> tuple[Tensor, ...]:
        w = ops.prepare_linear(on["w"])
        return (
            ops.linear(on["x"], w),
            ops.linear(on["x"], w, on["base"], epilogue="add"),
            ops.linear(on["x"], w, epilogue="silu_mul"),
            ops.linear(on["x"], w, on["base"], on["scale"], epilogue="scaled_add"),
        )

    leaves = {
        "x": normal(rows, 33),
        "w": normal(20, 33),
        "base": normal(rows, 20),
        "scale": normal(rows, 1),
    }
    return Case(leaves, call)


def norms(normal: Normal, lengths: list[int]) -> Case:
    rows = sum(lengths)

    def call(ops: OpTable, on: Leaves) -> tuple[Tensor, ...]:
        weight = ops.prepare_vector(on["weight"])
        position = torch.arange(rows, dtype=torch.int32)
        turned = [
            each
            for interleaved in (False, True)
            for each in ops.qk_norm_rope(
                on["q"],
                on["k"],
                weight,
                weight,
                position,
                eps=1e-6,
                rotary=8,
                theta=1e4,
                interleaved=interleaved,
            )
        ]
        return (
            ops.rms_norm(on["k"], weight, eps=1e-6, zero_centred=True),
            ops.rms_norm(on["k"], weight, eps=1e-6, zero_centred=False),
            ops.gated_norm(on["q"].view(rows, 2, 24), on["z"], weight, eps=1e-6),
            *turned,
        )

    leaves = {
        "q": normal(rows, 48),
        "k": normal(rows, 24),
        "z": normal(rows, 48),
        "weight": normal(24, scale=0.2),
    }
    return Case(leaves, call)


def recurrent(normal: Normal, lengths: list[int]) -> Case:
    rows, heads, widths = sum(lengths), (2, 4), (16, 24)
    channels = 2 * heads[0] * widths[0] + heads[1] * widths[1]

    def call(ops: OpTable, on: Leaves) -> tuple[Tensor, ...]:
        spans = training_spans(lengths)
        qkv = ops.causal_conv(on["x"], ops.prepare_conv(on["conv"]), spans, None)
        vectors = ops.prepare_vector(on["a_log"]), ops.prepare_vector(on["dt_bias"])
        return qkv, ops.delta_rule(
            qkv, on["b"], on["a"], *vectors, spans, None, heads=heads, widths=widths
        )

    leaves = {
        "x": normal(rows, channels),
        "conv": normal(channels, 4, scale=0.5),
        "b": normal(rows, 4),
        "a": normal(rows, 4),
        "a_log": normal(4),
        "dt_bias": normal(4),
    }
    return Case(leaves, call)


def attend(normal: Normal, lengths: list[int]) -> Case:
    rows = sum(lengths)

    def call(ops: OpTable, on: Leaves) -> tuple[Tensor, ...]:
        spans = training_spans(lengths)
        q, k = on["q"].view(rows, 4, 24), on["k"].view(rows, 2, 24)
        return (ops.attend(q, k, on["v"], on["gate"], spans, None),)

    widths = {"q": 96, "k": 48, "v": 48, "gate": 96}
    return Case({name: normal(rows, width) for name, width in widths.items()}, call)


def experts(normal: Normal, lengths: list[int]) -> Case:
    rows = sum(lengths)

    def call(ops: OpTable, on: Leaves) -> tuple[Tensor, ...]:
        weights, ids = ops.router(on["x"], ops.prepare_linear(on["router"]), top_k=3)
        handle = ops.prepare_experts(on["gate_up"].unbind(), on["down"].unbind())
        return weights, ops.experts(on["x"], weights, ids, handle, on["base"])

    leaves = {
        "x": normal(rows, 33),
        "base": normal(rows, 33),
        "router": normal(8, 33),
        "gate_up": normal(8, 48, 33, scale=0.2),
        "down": normal(8, 33, 24, scale=0.2),
    }
    return Case(leaves, call)


def frames(normal: Normal, lengths: list[int]) -> Case:
    rows = sum(lengths)
    frame_rows = torch.arange(rows * 5, dtype=torch.int32).view(rows, 5) % 12
    frame_rows[:, 0] += 5

    def call(ops: OpTable, on: Leaves) -> tuple[Tensor, ...]:
        table, codebooks = ops.prepare_table(on["table"]), ops.prepare_table(on["codebooks"])
        extra = ops.extra_codes(frame_rows, codebooks, band=BAND, first=2)
        norm = ops.prepare_vector(on["norm"])
        return (
            ops.embed(frame_rows, table, codebooks, band=BAND, codes=1),
            ops.tower_input(
                on["h"], frame_rows, table, extra, norm, norm, column=2, band=BAND, eps=1e-6
            ),
            ops.gather_rows(on["h"], torch.tensor([rows - 1, -1, 0], dtype=torch.int32)),
        )

    leaves = {
        "h": normal(rows, 24),
        "table": normal(40, 24),
        "codebooks": normal(48, 24),
        "norm": normal(24, scale=0.2),
    }
    return Case(leaves, call)


@pytest.fixture
def plain() -> PlainOps:
    return PlainOps(Ranks())


def run(case: Case, ops: OpTable) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Results, and the gradients of a fixed weighting of all of them."""
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in case.leaves.items()}
    results = case.call(ops, leaves)
    generator = torch.Generator().manual_seed(3)
    total = torch.zeros(())
    for result in results:
        total = total + (result * torch.randn(result.shape, generator=generator)).sum()
    found = torch.autograd.grad(total, list(leaves.values()))
    return results, dict(zip(leaves, found, strict=True))


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("make", [linear, norms, recurrent, attend, experts, frames])
def test_results_and_gradients_are_the_references(
    ops: ReferenceOps,
    plain: PlainOps,
    normal: Normal,
    make: Callable[[Normal, list[int]], Case],
    lengths: list[int],
) -> None:
    case = make(normal, lengths)
    wanted, wanted_gradients = run(case, ops)
    found, found_gradients = run(case, plain)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=2e-5)
    for name, gradient in found_gradients.items():
        scale = float(wanted_gradients[name].abs().max())
        torch.testing.assert_close(
            gradient, wanted_gradients[name], rtol=1e-3, atol=1e-4 * scale + 1e-6, msg=name
        )


def test_it_promises_nothing_and_says_so(plain: PlainOps) -> None:
    assert plain.name == "plain"
    assert not plain.exact


def test_handles_are_the_weights_themselves(plain: PlainOps, normal: Normal) -> None:
    weight, vector = normal(4, 4), normal(4)
    for prepare in (plain.prepare_linear, plain.prepare_conv, plain.prepare_table):
        assert prepare(weight) is weight
    assert plain.prepare_vector(vector) is vector
    handle = plain.prepare_experts([weight.bfloat16(), weight.bfloat16()], [weight, weight])
    tensors = trainable({"head": weight, "routed": handle})
    assert list(tensors) == ["head", "routed.gate_up", "routed.down"]
    assert tensors["head"] is weight
    assert torch.equal(tensors["routed.gate_up"][1], weight.bfloat16().float())
    assert torch.equal(tensors["routed.down"], torch.stack([weight, weight]))


def test_block_fp8_experts_are_decoded(ops: ReferenceOps, plain: PlainOps, normal: Normal) -> None:
    gate_up = [encode(normal(48, 33)) for _ in range(4)]
    down = [encode(normal(33, 24)) for _ in range(4)]
    x, base, weights = normal(7, 33), normal(7, 33), normal(7, 2).abs()
    ids = normal(7, 4).argsort(-1)[:, :2].int()
    wanted, found = (
        table.experts(x, weights, ids, table.prepare_experts(gate_up, down), base)
        for table in (ops, plain)
    )
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=2e-5 * float(wanted.abs().max()))


def test_state_is_read_and_written_as_the_reference_does(
    ops: ReferenceOps, plain: PlainOps, normal: Normal
) -> None:
    """Two cuts of two streams with state and pages, beside padding."""
    memory = Memory(slots=4, pages=12)
    pages = [memory.stream_pages(0, 40), memory.stream_pages(1, 40)]
    qkv, heads, widths = normal(60, 112), (1, 2), (16, 40)
    b, a, a_log, dt_bias = normal(60, 2), normal(60, 2), normal(2), normal(2)
    conv = normal(112, 4)
    q, k, v, gate = normal(60, 4, 24), normal(60, 2, 24), normal(60, 48), normal(60, 96)

    def outputs(table: OpTable) -> list[Tensor]:
        tail, state = memory.slot_state(3, 112), memory.slot_state(2, 16, 40)
        tail[:2], state[:2] = 0.0, 0.0
        kept = memory.page_state(2, 24)
        vectors = table.prepare_vector(a_log), table.prepare_vector(dt_bias)
        made = []
        for first, counts in ((0, (17, 4)), (21, (1, 33))):
            done = (0, 0) if first == 0 else (17, 4)
            parts = [Part(i, done[i], counts[i], pages[i]) for i in range(2)]
            spans = memory.spans(parts, padding=2)
            rows = slice(first, first + sum(counts) + 2)
            mixed = table.causal_conv(qkv[rows], table.prepare_conv(conv), spans, tail)
            args = (mixed, b[rows], a[rows], *vectors, spans, state)
            made.append(table.delta_rule(*args, heads=heads, widths=widths))
            made.append(table.attend(q[rows], k[rows], v[rows], gate[rows], spans, kept))
        chosen = [page for each in pages for page in each]
        written = [part[chosen].nan_to_num() for part in (kept.k, kept.v)]
        return [*made, tail[:2], state[:2], *written]

    for found, wanted in zip(outputs(plain), outputs(ops), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=2e-5)
