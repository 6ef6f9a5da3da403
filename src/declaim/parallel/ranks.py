"""Ranks as an object: which part of the model this process computes."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Ranks:
    """One rank alone: the whole model in one process; collectives change nothing."""

    rank: int = 0
    size: int = 1

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum over one rank: x itself."""
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """The join of one rank: x itself."""
        return x
