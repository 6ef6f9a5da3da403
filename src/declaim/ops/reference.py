"""The exact op table in readable PyTorch: the oracle, and the arithmetic of the CPU.

Computes in float32 whatever the dtype of its inputs. The bytes of a row's result depend on the
row and its own context alone, never on other rows, their number, their place or the cut.
"""

from declaim.ops.attention import AttentionOps
from declaim.ops.convolution import ConvolutionOps
from declaim.ops.delta_chunked import ChunkedDeltaRuleOps
from declaim.ops.delta_rule import DeltaRuleOps
from declaim.ops.dense import DenseOps
from declaim.ops.draws import DrawOps
from declaim.ops.experts import ExpertOps
from declaim.ops.frames import FrameOps
from declaim.ops.ranks import RankOps
from declaim.ops.rope import RopeOps
from declaim.ops.table import Collectives


class ReferenceOps(
    DenseOps,
    ExpertOps,
    ConvolutionOps,
    DeltaRuleOps,
    ChunkedDeltaRuleOps,
    RopeOps,
    AttentionOps,
    FrameOps,
    DrawOps,
    RankOps,
):
    """OpTable in exact PyTorch; each op stands in the file of its kind."""

    name = "reference"
    exact = True

    def __init__(self, collectives: Collectives) -> None:
        super().__init__()
        self.collectives = collectives
