"""Which draw uses which noise and which parameters; the arithmetic is in the op table.

Draw 0 is the main token, draw 1 its repetition-aware second, draw 2 + j residual head j.
"""

from torch import Tensor

from declaim.config.model import ModelConfig
from declaim.ops.table import OpTable
from declaim.state.frames import FrameState


class FrameSampler:
    """The draws of a frame, keyed by (request seed, frame index, draw, candidate)."""

    def __init__(self, config: ModelConfig, ops: OpTable, candidates: Tensor) -> None:
        """candidates int32 [C], token ids ascending, on the device."""
        self.ops = ops
        self.band = config.band
        self.candidates = candidates
        self.draws = config.tower.num_codebooks + 1
        self.width = max(len(config.candidates), config.tower.codebook_size)

    def noise(self, state: FrameState, slot: Tensor) -> Tensor:
        """float32 [draws, streams, width], uniform in (0, 1)."""
        return self.ops.noise(state.seed, state.counter, slot, draws=self.draws, width=self.width)

    def main(
        self, logits: Tensor, noise: Tensor, state: FrameState, slot: Tensor, out: Tensor
    ) -> None:
        """Both main draws and the choice between them, into out int32 [streams, 2]."""
        self.ops.draw_main(
            logits,
            noise,
            state.sampling,
            state.window,
            self.candidates,
            slot,
            band=self.band,
            out=out,
        )

    def code(
        self,
        index: int,
        logits: Tensor,
        noise: Tensor,
        state: FrameState,
        slot: Tensor,
        out: Tensor,
    ) -> None:
        """One code from residual head `index`, into out int32 [streams]."""
        self.ops.draw_code(logits, noise[2 + index], state.sampling, slot, out=out)
