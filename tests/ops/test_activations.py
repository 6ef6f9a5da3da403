"""Activations: right everywhere, and the same bytes wherever an element stands."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from declaim.ops.activations import sigmoid, silu, softplus

Normal = Callable[..., Tensor]

FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "sigmoid": (sigmoid, torch.sigmoid),
    "silu": (silu, torch.nn.functional.silu),
    "softplus": (softplus, lambda x: torch.logaddexp(x, torch.zeros_like(x))),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(name: str, normal: Normal) -> None:
    ours, wanted = FUNCTIONS[name]
    x = torch.cat([normal(500, scale=8.0), torch.tensor([0.0, -0.0, 88.0, -88.0, 30.0, -30.0])])
    torch.testing.assert_close(ours(x).double(), wanted(x.double()), rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_overflow(name: str) -> None:
    """At either end the limit, not NaN."""
    ours, _ = FUNCTIONS[name]
    low, high = ours(torch.tensor([-1e4, 1e4])).tolist()
    assert abs(low) < 1e-30
    assert high == (1.0 if name == "sigmoid" else 1e4)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_place_and_number_do_not_matter(name: str, threads: int, normal: Normal) -> None:
    ours, _ = FUNCTIONS[name]
    x = normal(40_001, scale=4.0)
    whole = ours(x)
    for first, count in [(0, 1), (3, 1), (16, 7), (31, 33), (5, 39_000), (39_990, 11)]:
        assert torch.equal(ours(x[first : first + count]), whole[first : first + count])
