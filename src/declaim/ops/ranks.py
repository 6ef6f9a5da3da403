"""The ops that join ranks; how they are joined is the collectives' matter."""

from torch import Tensor

from declaim.ops.elementwise import store
from declaim.ops.table import Collectives


class RankOps:
    """Sums and joins over ranks, by the collectives that the table was given."""

    collectives: Collectives

    def all_reduce(self, x: Tensor, *, out: Tensor | None = None) -> Tensor:
        """See OpTable."""
        return store(self.collectives.all_reduce(x), out)

    def all_gather(self, x: Tensor, *, out: Tensor | None = None) -> Tensor:
        """See OpTable."""
        return store(self.collectives.all_gather(x), out)
