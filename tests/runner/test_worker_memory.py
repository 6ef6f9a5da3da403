"""A stage that the memory does not hold is refused with its numbers."""

from collections.abc import Callable
from pathlib import Path

import pytest

from declaim.contracts.errors import OutOfMemory
from declaim.runner.runner import Runner


@pytest.mark.parametrize("option", ["max_num_seqs", "kv_pages"])
def test_more_than_memory(
    build: Callable[..., Runner], checkpoint: Callable[[str], Path], option: str
) -> None:
    with pytest.raises(OutOfMemory, match=r"2147483647 streams|2,147,483,647 pages"):
        build(checkpoint("micro"), **{"kv_pages": 4, option: 2**31 - 1})
