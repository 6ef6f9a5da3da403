"""linear, norms, RoPE and router: against float64, and a row's bytes whatever stands beside it."""

from collections.abc import Callable

import pytest
import torch
from row_checks import near, same_rows
from torch import Tensor

from declaim.ops.reference import ReferenceOps

Normal = Callable[..., Tensor]

COUNTS = [1, 2, 3, 5, 8, 17, 33]
EPILOGUES = ["store", "add", "silu_mul", "scaled_add"]


@pytest.mark.parametrize("rows", [2, 40, 258])
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_linear_is_the_product(ops: ReferenceOps, normal: Normal, rows: int, epilogue: str) -> None:
    for count in COUNTS:
        x, weight = normal(count, 75), normal(rows, 75, scale=0.1)
        base, scale = normal(count, rows), normal(count, 1)
        y = x.double() @ weight.double().T
        gate, up = y.chunk(2, -1)
        wanted = {
            "store": y,
            "add": base + y,
            "silu_mul": gate * torch.sigmoid(gate) * up,
            "scaled_add": base + torch.sigmoid(scale.double()) * y,
        }[epilogue]
        found = ops.linear(x, ops.prepare_linear(weight), base, scale, epilogue=epilogue)
        near(found, wanted)


@pytest.mark.parametrize("columns", [24, 33, 192, 2048])
def test_linear_rows_stand_alone(
    ops: ReferenceOps, normal: Normal, threads: int, columns: int
) -> None:
    x = normal(44, columns)
    for rows in (1, 3, 16, 40, 257, 1040):
        weight = ops.prepare_linear(normal(rows, columns, scale=0.1))
        same_rows(lambda part, w=weight: (ops.linear(part, w),), x)  # type: ignore[misc]


@pytest.mark.parametrize("epilogue", EPILOGUES[1:])
def test_epilogues_keep_rows_alone(
    ops: ReferenceOps, normal: Normal, threads: int, epilogue: str
) -> None:
    """Base and scale travel as columns beside x, so that they are cut with it."""
    weight = ops.prepare_linear(normal(1040, 192, scale=0.1))

    def op(rows: Tensor) -> tuple[Tensor, ...]:
        x, base, scale = rows.split([192, 1040, 1], -1)
        return (ops.linear(x, weight, base, scale, epilogue=epilogue),)

    same_rows(op, normal(44, 192 + 1040 + 1))


def test_linear_of_a_strided_view_is_that_of_its_copy(ops: ReferenceOps, normal: Normal) -> None:
    weight = ops.prepare_linear(normal(40, 33))
    x = normal(9, 100)[:, 11:44]
    assert torch.equal(ops.linear(x, weight), ops.linear(x.contiguous(), weight))


@pytest.mark.parametrize("width", [1, 24, 33, 192, 2048])
@pytest.mark.parametrize("zero_centred", [False, True])
def test_rms_norm(ops: ReferenceOps, normal: Normal, width: int, zero_centred: bool) -> None:
    weight = normal(width)
    handle = ops.prepare_vector(weight)
    for count in COUNTS:
        x = normal(count, width, scale=3.0)
        wide, factor = x.double(), weight.double() + (1.0 if zero_centred else 0.0)
        wanted = wide / torch.sqrt(wide.pow(2).sum(-1, keepdim=True) / width + 1e-6) * factor
        near(ops.rms_norm(x, handle, eps=1e-6, zero_centred=zero_centred), wanted)
    zeros = ops.rms_norm(torch.zeros(2, width), handle, eps=1e-6, zero_centred=zero_centred)
    assert torch.equal(zeros, torch.zeros(2, width))


@pytest.mark.parametrize("width", [24, 33, 192, 2048])
def test_rms_norm_rows_stand_alone(
    ops: ReferenceOps, normal: Normal, threads: int, width: int
) -> None:
    weight = ops.prepare_vector(normal(width))
    same_rows(lambda x: (ops.rms_norm(x, weight, eps=1e-6, zero_centred=True),), normal(44, width))


@pytest.mark.parametrize(("heads", "width"), [(1, 24), (3, 33), (8, 24), (4, 128)])
def test_gated_norm(
    ops: ReferenceOps, normal: Normal, threads: int, heads: int, width: int
) -> None:
    weight = normal(width)
    handle = ops.prepare_vector(weight)
    both = normal(44, 2 * heads * width)

    def op(rows: Tensor) -> tuple[Tensor, ...]:
        o, z = rows.chunk(2, -1)
        return (ops.gated_norm(o.reshape(len(rows), heads, width), z, handle, eps=1e-6),)

    o, z = both.double().chunk(2, -1)
    each = o.view(44, heads, width)
    each = each / torch.sqrt(each.pow(2).mean(-1, keepdim=True) + 1e-6) * weight.double()
    near(op(both)[0], each.flatten(1) * z * torch.sigmoid(z))
    same_rows(op, both)


def turned(x: Tensor, position: Tensor, rotary: int, theta: float, interleaved: bool) -> Tensor:
    """RoPE in complex numbers, float64 [n, heads, width]."""
    half = rotary // 2
    pairs = [(2 * i, 2 * i + 1) if interleaved else (i, i + half) for i in range(half)]
    result = x.clone()
    for i, (first, second) in enumerate(pairs):
        angle = position.double() * theta ** (-2 * i / rotary)
        turn = torch.polar(torch.ones_like(angle), angle)[:, None]
        pair = torch.complex(x[..., first], x[..., second]) * turn
        result[..., first], result[..., second] = pair.real, pair.imag
    return result


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "width", "rotary"),
    [(8, 1, 24, 6), (2, 2, 32, 8), (1, 1, 24, 24), (16, 2, 256, 64)],
)
def test_qk_norm_rope(
    ops: ReferenceOps,
    normal: Normal,
    threads: int,
    interleaved: bool,
    heads: int,
    kv_heads: int,
    width: int,
    rotary: int,
) -> None:
    q_weight, k_weight = normal(width), normal(width)
    handles = ops.prepare_vector(q_weight), ops.prepare_vector(k_weight)
    rows = normal(44, (heads + kv_heads) * width + 1)
    rows[:, -1] = torch.randint(0, 3000, (44,), generator=torch.Generator().manual_seed(5)).float()

    def op(part: Tensor) -> tuple[Tensor, ...]:
        q, k, position = part.split([heads * width, kv_heads * width, 1], -1)
        place = position.nan_to_num(0.0).clamp(max=1e4)[:, 0].int()
        options = {"eps": 1e-6, "rotary": rotary, "theta": 1e4, "interleaved": interleaved}
        return ops.qk_norm_rope(q, k, *handles, place, **options)  # type: ignore[arg-type]

    made = op(rows)
    first = 0
    for found, weight, count in zip(made, (q_weight, k_weight), (heads, kv_heads), strict=True):
        x = rows[:, first : first + count * width].double().view(44, count, width)
        x = x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * (1 + weight.double())
        near(found, turned(x, rows[:, -1], rotary, 1e4, interleaved), 1e-3)
        first += count * width
    same_rows(op, rows)


@pytest.mark.parametrize(("experts", "top_k"), [(3, 3), (8, 2), (16, 4), (256, 8)])
def test_router(ops: ReferenceOps, normal: Normal, threads: int, experts: int, top_k: int) -> None:
    weight, x = normal(experts, 72, scale=0.2), normal(44, 72)
    handle = ops.prepare_linear(weight)
    weights, ids = ops.router(x, handle, top_k=top_k)
    assert weights.dtype == torch.float32 and ids.dtype == torch.int32
    probability = torch.softmax(x.double() @ weight.double().T, -1)
    largest = probability.topk(top_k, -1)
    assert torch.equal(ids.long(), largest.indices)
    near(weights, largest.values / largest.values.sum(-1, keepdim=True))
    same_rows(lambda part: ops.router(part, handle, top_k=top_k), x)


def test_router_ties_go_to_the_lowest_id(ops: ReferenceOps) -> None:
    weight = torch.zeros(8, 4)
    weight[6] = 1.0
    weights, ids = ops.router(torch.ones(3, 4), ops.prepare_linear(weight), top_k=4)
    assert ids.tolist() == [[6, 0, 1, 2]] * 3
    assert torch.equal(weights[:, 1], weights[:, 3])


def test_results_have_the_dtype_of_x(ops: ReferenceOps, normal: Normal) -> None:
    """bfloat16 operands are computed in float32 and rounded once."""
    x, weight = normal(5, 40).bfloat16(), normal(32, 40, scale=0.2).bfloat16()
    exact = ops.linear(x.float(), ops.prepare_linear(weight.float()))
    assert torch.equal(ops.linear(x, ops.prepare_linear(weight)), exact.bfloat16())
    norm = ops.prepare_vector(normal(40).bfloat16())
    exact = ops.rms_norm(x.float(), norm, eps=1e-6, zero_centred=True)
    assert torch.equal(ops.rms_norm(x, norm, eps=1e-6, zero_centred=True), exact.bfloat16())
    weights, ids = ops.router(x, ops.prepare_linear(weight), top_k=2)
    assert weights.dtype == torch.float32 and ids.dtype == torch.int32
    same_rows(lambda part: (ops.linear(part, ops.prepare_linear(weight)),), x, most=4)
