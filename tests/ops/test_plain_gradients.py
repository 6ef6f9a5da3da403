"""Gradients of the differentiable table's own formulas, against finite differences in float64."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from declaim.ops import activations
from declaim.ops.delta_rule import DeltaInputs, causal_conv, delta_rule, delta_rule_chunked
from declaim.ops.plain import PlainOps, StackedExperts, causal_attention, mixed_experts
from declaim.parallel.ranks import Ranks
from declaim.state.step import training_spans

Normal = Callable[..., Tensor]


@pytest.fixture
def leaf(normal: Normal) -> Normal:
    """As `normal`, in float64 and wanting a gradient."""

    def draw(*shape: int, scale: float = 1.0) -> Tensor:
        return normal(*shape, scale=scale).double().requires_grad_()

    return draw


def test_attention(leaf: Normal) -> None:
    def op(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return causal_attention(q, k, v, [4, 1, 2])

    assert torch.autograd.gradcheck(op, (leaf(7, 4, 3), leaf(7, 2, 3), leaf(7, 2, 3)))


def test_experts(leaf: Normal) -> None:
    """Experts that no row chose have a gradient of zeros."""
    ids = torch.tensor([[4, 0], [0, 2], [2, 4]], dtype=torch.int32)

    def op(x: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        return mixed_experts(x, weights, ids, StackedExperts(gate_up, down))

    gate_up, down = leaf(5, 6, 4), leaf(5, 4, 3)
    x, weights = leaf(3, 4), leaf(3, 2)
    assert torch.autograd.gradcheck(op, (x, weights, gate_up, down))
    found = torch.autograd.grad(op(x, weights, gate_up, down).sum(), (gate_up, down))
    for gradient in found:
        chosen = gradient.flatten(1).ne(0.0).any(1)
        assert chosen.tolist() == [True, False, True, False, True]


def test_causal_convolution(leaf: Normal) -> None:
    def op(x: Tensor, weight: Tensor) -> Tensor:
        return causal_conv(x, weight, training_spans([5, 1, 2]), None)

    assert torch.autograd.gradcheck(op, (leaf(8, 3), leaf(3, 4)))


def test_chunked_delta_rule(leaf: Normal) -> None:
    def op(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor) -> Tensor:
        inputs = DeltaInputs(q, k, v, beta.sigmoid(), -g * g)
        return delta_rule_chunked(inputs, training_spans([4, 2]), None)

    rows = (leaf(6, 2, 3), leaf(6, 2, 3), leaf(6, 2, 2), leaf(6, 2), leaf(6, 2))
    assert torch.autograd.gradcheck(op, rows)


def test_chunked_delta_rule_over_several_chunks(leaf: Normal) -> None:
    """Results and gradients of both forms agree far beyond a chunk, also with strong decay."""
    rows = (leaf(220, 2, 8), leaf(220, 2, 8), leaf(220, 2, 4), leaf(220, 2), leaf(220, 2))
    spans = training_spans([140, 3, 77])

    def gradients(rule: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        q, k, v, beta, g = rows
        k = k * torch.rsqrt((k * k).sum(-1, keepdim=True))
        inputs = DeltaInputs(q, k, v, beta.sigmoid(), -30.0 * g.sigmoid() ** 4)
        made = rule(inputs, spans, None)
        weighting = torch.linspace(-1.0, 1.0, made.numel(), dtype=torch.float64)
        return made, *torch.autograd.grad((made.flatten() * weighting).sum(), rows)

    for found, wanted in zip(gradients(delta_rule_chunked), gradients(delta_rule), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["sigmoid", "silu", "softplus"])
def test_activations(name: str) -> None:
    """Against the library's in float64; at the far ends gradients are finite and right."""
    ours, theirs = getattr(activations, name), getattr(torch.nn.functional, name)
    values = [-1e30, -1e4, -200.0, -89.0, -50.0, -3.0, -0.0, 0.0, 0.5, 20.0, 89.0, 1e4, 1e30]
    x = torch.tensor(values).requires_grad_()
    wide = x.detach().double().requires_grad_()
    found, wanted = ours(x), theirs(wide)
    found_gradient = torch.autograd.grad(found.sum(), x)[0]
    wanted_gradient = torch.autograd.grad(wanted.sum(), wide)[0]
    torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(found_gradient.double(), wanted_gradient, rtol=1e-6, atol=1e-8)


def test_gradients_of_huge_rows_are_finite(normal: Normal) -> None:
    ops, rows = PlainOps(Ranks()), 20
    spans = training_spans([13, 7])
    x = (normal(rows, 64) * 1e3).requires_grad_()
    weight = normal(64, 64).requires_grad_()
    vector = normal(2).requires_grad_()
    y = ops.linear(x, weight, epilogue="silu_mul")
    mixed = ops.causal_conv(x, weight[:, :4], spans, None)
    ba = ops.linear(x, weight)[:, :4]
    o = ops.delta_rule(
        mixed, ba[:, :2], ba[:, 2:], vector, vector, spans, None, heads=(1, 2), widths=(16, 16)
    )
    q, k, v, gate = x.view(rows, 8, 8), x.view(rows, 8, 8), x, x
    attended = ops.attend(q, k, v, gate, spans, None)
    gated = ops.gated_norm(o, x[:, :32], weight[0, :16], eps=1e-6)
    total = y.sum() + attended.sum() + gated.sum()
    for gradient in torch.autograd.grad(total, (x, weight, vector)):
        assert gradient.isfinite().all()
