"""The plain table: the reference's values, and gradients that reach every parameter."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from op_memory import Memory, Part
from torch import Tensor

from declaim.ops.block_fp8 import decode, encode
from declaim.ops.plain import PlainOps
from declaim.ops.reference import ReferenceOps
from declaim.ops.table import OpTable
from declaim.parallel.ranks import Ranks
from declaim.state.step import training_spans

Normal = Callable[..., Tensor]
Loss = Callable[[OpTable], Tensor]

LENGTHS = [70, 1, 9, 128]
ROWS = sum(LENGTHS)


@pytest.fixture
def plain() -> PlainOps:
    return PlainOps(Ranks())


def compare(plain: PlainOps, ops: ReferenceOps, run: Loss, tolerance: float = 2e-5) -> None:
    """The same call on both tables."""
    torch.testing.assert_close(run(plain), run(ops), rtol=tolerance, atol=tolerance)


def gradients(run: Callable[[], Tensor], leaves: dict[str, Tensor]) -> None:
    """Every leaf gets a finite gradient that agrees with a step along a fixed direction.

    In float32 a difference quotient is coarse, so the comparison is to a few percent.
    """
    generator = torch.Generator().manual_seed(4)
    weights = torch.randn(run().shape, generator=generator)

    def loss() -> Tensor:
        return (run().double() * weights.double()).sum()

    loss().backward()
    for name, leaf in leaves.items():
        gradient = leaf.grad
        assert gradient is not None and torch.isfinite(gradient).all(), name
        direction = gradient / gradient.norm()
        step = 1e-2
        with torch.no_grad():
            leaf.add_(direction, alpha=step)
            ahead = loss()
            leaf.sub_(direction, alpha=2 * step)
            behind = loss()
            leaf.add_(direction, alpha=step)
        slope = float((ahead - behind) / (2 * step))
        assert slope == pytest.approx(float(gradient.norm()), rel=0.05), name


def leaves_of(**tensors: Tensor) -> dict[str, Tensor]:
    return {name: tensor.clone().requires_grad_() for name, tensor in tensors.items()}


def test_handles_are_the_tensors_themselves(plain: PlainOps, normal: Normal) -> None:
    weight = normal(6, 5)
    assert plain.prepare_linear(weight) is weight
    assert plain.prepare_vector(weight[0]).data_ptr() == weight.data_ptr()
    assert plain.prepare_conv(weight) is weight
    assert plain.prepare_table(weight) is weight
    experts = plain.prepare_experts([weight], [weight])
    assert experts.gate_up[0] is weight and experts.down[0] is weight
    assert experts.shape == (1, 6, 5)


@pytest.mark.parametrize("epilogue", ["store", "add", "silu_mul", "scaled_add"])
def test_linear(plain: PlainOps, ops: ReferenceOps, normal: Normal, epilogue: str) -> None:
    parts = {"x": normal(7, 10), "weight": normal(12, 10)}
    if epilogue in ("add", "scaled_add"):
        parts["base"] = normal(7, 12)
    if epilogue == "scaled_add":
        parts["scale"] = normal(7, 1)
    leaves = leaves_of(**parts)

    def run(table: OpTable) -> Tensor:
        w = table.prepare_linear(leaves["weight"])
        base, scale = leaves.get("base"), leaves.get("scale")
        return table.linear(leaves["x"], w, base, scale, epilogue=epilogue)

    compare(plain, ops, run)
    gradients(partial(run, plain), leaves)


@pytest.mark.parametrize("zero_centred", [False, True])
def test_rms_norm(plain: PlainOps, ops: ReferenceOps, normal: Normal, zero_centred: bool) -> None:
    leaves = leaves_of(x=normal(5, 12), weight=normal(12))

    def run(table: OpTable) -> Tensor:
        w = table.prepare_vector(leaves["weight"])
        return table.rms_norm(leaves["x"], w, eps=1e-6, zero_centred=zero_centred)

    compare(plain, ops, run)
    gradients(partial(run, plain), leaves)


def test_gated_norm(plain: PlainOps, ops: ReferenceOps, normal: Normal) -> None:
    leaves = leaves_of(o=normal(5, 3, 8), z=normal(5, 24), weight=normal(8))

    def run(table: OpTable) -> Tensor:
        w = table.prepare_vector(leaves["weight"])
        return table.gated_norm(leaves["o"], leaves["z"], w, eps=1e-6)

    compare(plain, ops, run)
    gradients(partial(run, plain), leaves)


@pytest.mark.parametrize("interleaved", [False, True])
def test_qk_norm_rope(
    plain: PlainOps, ops: ReferenceOps, normal: Normal, interleaved: bool
) -> None:
    leaves = leaves_of(q=normal(6, 48), k=normal(6, 24), q_weight=normal(12), k_weight=normal(12))
    position = torch.arange(6, dtype=torch.int32) * 37

    def run(table: OpTable) -> Tensor:
        q_weight = table.prepare_vector(leaves["q_weight"])
        k_weight = table.prepare_vector(leaves["k_weight"])
        q, k = table.qk_norm_rope(
            leaves["q"],
            leaves["k"],
            q_weight,
            k_weight,
            position,
            eps=1e-6,
            rotary=8,
            theta=1e4,
            interleaved=interleaved,
        )
        return torch.cat((q, k), dim=1)

    compare(plain, ops, run)
    gradients(partial(run, plain), leaves)


def test_causal_conv(plain: PlainOps, ops: ReferenceOps, normal: Normal) -> None:
    leaves = leaves_of(x=normal(ROWS, 6), weight=normal(6, 4))
    spans = training_spans(LENGTHS)

    def run(table: OpTable) -> Tensor:
        w = table.prepare_conv(leaves["weight"])
        return table.causal_conv(leaves["x"], w, spans, None)

    compare(plain, ops, run)
    gradients(partial(run, plain), leaves)


@pytest.mark.parametrize("name", ["delta_rule", "delta_rule_chunked"])
def test_delta_rule(plain: PlainOps, ops: ReferenceOps, normal: Normal, name: str) -> None:
    """Against the row-by-row rule of the reference, whichever form is asked for."""
    heads, widths = (2, 4), (8, 12)
    leaves = leaves_of(
        qkv=normal(ROWS, 80),
        b=normal(ROWS, 4),
        a=normal(ROWS, 4),
        a_log=normal(4, scale=0.5),
        dt_bias=normal(4),
    )
    spans = training_spans(LENGTHS)

    def run(table: OpTable, name: str) -> Tensor:
        a_log = table.prepare_vector(leaves["a_log"])
        dt_bias = table.prepare_vector(leaves["dt_bias"])
        rows = leaves["qkv"], leaves["b"], leaves["a"]
        op = getattr(table, name)
        result: Tensor = op(*rows, a_log, dt_bias, spans, None, heads=heads, widths=widths)
        return result

    torch.testing.assert_close(run(plain, name), run(ops, "delta_rule"), rtol=1e-4, atol=1e-5)
    gradients(partial(run, plain, name), leaves)


def test_attend(plain: PlainOps, ops: ReferenceOps, normal: Normal) -> None:
    leaves = leaves_of(
        q=normal(ROWS, 4, 12), k=normal(ROWS, 2, 12), v=normal(ROWS, 24), gate=normal(ROWS, 48)
    )
    spans = training_spans(LENGTHS)

    def run(table: OpTable) -> Tensor:
        q, k, v, gate = leaves.values()
        return table.attend(q, k, v, gate, spans, None)

    compare(plain, ops, run)
    gradients(partial(run, plain), leaves)


def test_router_and_experts(plain: PlainOps, ops: ReferenceOps, normal: Normal) -> None:
    leaves = leaves_of(
        x=normal(9, 8),
        gate=normal(6, 8),
        gate_up=normal(6, 10, 8, scale=0.5),
        down=normal(6, 8, 5, scale=0.5),
        base=normal(9, 8),
    )

    def run(table: OpTable) -> Tensor:
        weights, ids = table.router(leaves["x"], table.prepare_linear(leaves["gate"]), top_k=3)
        assert weights.dtype == torch.float32 and ids.dtype == torch.int32
        experts = table.prepare_experts(list(leaves["gate_up"]), list(leaves["down"]))
        return table.experts(leaves["x"], weights, ids, experts, leaves["base"])

    compare(plain, ops, run)
    gradients(partial(run, plain), leaves)


def test_block_fp8_experts(plain: PlainOps, normal: Normal) -> None:
    weights, ids = torch.rand(4, 1), torch.zeros(4, 1, dtype=torch.int32)
    gate_up, down = encode(normal(10, 8)), encode(normal(8, 5))
    x, base = normal(4, 8), normal(4, 8)
    found = plain.experts(x, weights, ids, plain.prepare_experts([gate_up], [down]), base)
    dense = plain.prepare_experts([decode(gate_up)], [decode(down)])
    assert torch.equal(found, plain.experts(x, weights, ids, dense, base))


def test_frame_inputs(plain: PlainOps, ops: ReferenceOps, normal: Normal) -> None:
    band = (4, 9)
    generator = torch.Generator().manual_seed(3)
    rows = torch.randint(0, 6, (12, 5), generator=generator, dtype=torch.int32)
    rows[:, 0] += torch.arange(12, dtype=torch.int32) % 8
    leaves = leaves_of(
        table=normal(16, 8),
        codebooks=normal(24, 8),
        own=normal(6, 8),
        enorm=normal(8),
        hnorm=normal(8),
    )

    def run(table: OpTable) -> Tensor:
        codebooks = table.prepare_table(leaves["codebooks"])
        h = table.embed(rows, table.prepare_table(leaves["table"]), codebooks, band=band, codes=2)
        extra = table.extra_codes(rows, codebooks, band=band, first=3)
        own = table.prepare_table(leaves["own"])
        enorm = table.prepare_vector(leaves["enorm"])
        hnorm = table.prepare_vector(leaves["hnorm"])
        return table.tower_input(h, rows, own, extra, enorm, hnorm, column=2, band=band, eps=1e-6)

    compare(plain, ops, run)
    gradients(partial(run, plain), leaves)


def test_state_and_pages(plain: PlainOps, ops: ReferenceOps, normal: Normal) -> None:
    """A prompt, then a decode row, through tail, state and pages as the reference does."""
    memory = Memory(slots=2, pages=7)
    pages = memory.stream_pages(2, 21)
    weight, a_log, dt_bias = normal(80, 4), normal(4), normal(4)
    rows, b, a = normal(21, 80), normal(21, 4), normal(21, 4)
    q, k, v, gate = normal(21, 4, 12), normal(21, 2, 12), normal(21, 24), normal(21, 48)

    def run(table: OpTable) -> Tensor:
        tail, state = memory.slot_state(3, 80), memory.slot_state(4, 8, 12)
        tail[1] = state[1] = 0.0
        kept = memory.page_state(2, 12)
        conv = table.prepare_conv(weight)
        vectors = table.prepare_vector(a_log), table.prepare_vector(dt_bias)
        results = []
        for first, count in [(0, 20), (20, 1)]:
            spans = memory.spans([Part(1, first, count, pages)])
            own = slice(first, first + count)
            qkv = table.causal_conv(rows[own], conv, spans, tail)
            o = table.delta_rule(
                qkv, b[own], a[own], *vectors, spans, state, heads=(2, 4), widths=(8, 12)
            )
            y = table.attend(q[own], k[own], v[own], gate[own], spans, kept)
            results.append(torch.cat((o.flatten(1), y), dim=1))
        return torch.cat([*(result.flatten() for result in results), state[1].flatten()])

    compare(plain, ops, run)


def test_draws_are_the_reference_s(plain: PlainOps, ops: ReferenceOps) -> None:
    seed, counter = torch.arange(3), torch.arange(3)
    slot = torch.tensor([2, 0], dtype=torch.int32)
    found = plain.noise(seed, counter, slot, draws=2, width=5)
    assert torch.equal(found, ops.noise(seed, counter, slot, draws=2, width=5))


def test_results_go_to_out(plain: PlainOps, normal: Normal) -> None:
    x, weight, out = normal(3, 8), normal(4, 8), torch.empty(3, 4)
    assert plain.linear(x, plain.prepare_linear(weight), out=out) is out
    torch.testing.assert_close(out, x @ weight.t())
