"""The op table under test, seeded numbers, and torch thread counts."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from declaim.ops.reference import ReferenceOps
from declaim.parallel.ranks import Ranks

Normal = Callable[..., Tensor]


@pytest.fixture
def ops() -> ReferenceOps:
    """The reference table of one rank."""
    return ReferenceOps(Ranks())


@pytest.fixture
def normal() -> Normal:
    """normal(*shape, scale): float32 numbers of one seeded stream."""
    generator = torch.Generator().manual_seed(20)

    def draw(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(shape, generator=generator) * scale

    return draw


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request: pytest.FixtureRequest, one_thread: None) -> int:
    """Torch threads of the test; the number from before comes back with `one_thread`."""
    count = int(request.param)
    torch.set_num_threads(count)
    return count
