"""Sound to codes, whole or as a stream.

The network runs on pieces of PIECE_FRAMES frames, counted from a clip's beginning, and on one
shorter piece at its end; a stream keeps its samples back until a piece is whole. So a clip's
codes are the same bit for bit however it is cut, where rounding could otherwise turn the choice
between two entries that are equally near, and memory is bounded whatever the length. The codes of
two clips of which one begins the other may differ by such a choice in the shorter one's last piece.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from declaim.codec.config import CodecConfig
from declaim.codec.encoder_network import EncoderMemory, EncoderNetwork
from declaim.codec.layers import Weights
from declaim.codec.names import encode_shapes
from declaim.codec.quantizer import CodeSearch
from declaim.contracts.errors import InvalidRequest
from declaim.contracts.request import FloatArray

PIECE_FRAMES = 16
"""Frames that are encoded at once."""

Codes = NDArray[np.int64]


class Encoder:
    """The encode side of one codec.

    weights: float32 tensors by folded published name; the decoder's may be among them.
    """

    def __init__(
        self, config: CodecConfig, weights: Weights, device: torch.device | str = "cpu"
    ) -> None:
        self.config = config
        self.device = torch.device(device)
        placed = {name: weights[name].to(self.device) for name in encode_shapes(config)}
        self.network = EncoderNetwork(config, placed)
        self.search = CodeSearch(config, placed)

    def encode(self, samples: FloatArray) -> Codes:
        """A whole clip: float32 samples [n] at the codec's rate -> codes int64 [Q, ceil(n / hop)].

        Zeros fill the last frame. Raises InvalidRequest for another shape or type and for samples
        that are not finite.
        """
        stream = self.stream()
        return np.concatenate((stream.feed(samples), stream.finish()), axis=1)

    def stream(self) -> "EncoderStream":
        """A clip that comes in parts."""
        return EncoderStream(self)


class EncoderStream:
    """One clip in parts of any length; all codes together are those of `Encoder.encode`."""

    def __init__(self, encoder: Encoder) -> None:
        config = encoder.config
        self._encoder = encoder
        self._hop = config.hop
        self._memory = EncoderMemory.allocate(config, encoder.device)
        self._position = torch.zeros(1, dtype=torch.int64, device=encoder.device)
        self._piece = np.zeros(PIECE_FRAMES * config.hop, dtype=np.float32)
        self._filled = 0
        self._over = False

    def feed(self, samples: FloatArray) -> Codes:
        """The next float32 samples [n] -> the codes of the pieces they complete, int64 [Q, k].

        Raises InvalidRequest, and takes nothing, for another shape or type and for samples that
        are not finite.
        """
        assert not self._over
        _check_samples(samples)
        codes = [self._none()]
        while len(samples):
            taken = samples[: len(self._piece) - self._filled]
            self._piece[self._filled : self._filled + len(taken)] = taken
            self._filled += len(taken)
            samples = samples[len(taken) :]
            if self._filled == len(self._piece):
                codes.append(self._advance(PIECE_FRAMES))
        return np.concatenate(codes, axis=1)

    def finish(self) -> Codes:
        """The codes of what is left, int64 [Q, k]. The stream is over after it."""
        assert not self._over
        self._over = True
        frames = -(-self._filled // self._hop)
        self._piece[self._filled : frames * self._hop] = 0
        return self._advance(frames) if frames else self._none()

    @torch.no_grad()
    def _advance(self, frames: int) -> Codes:
        samples = torch.from_numpy(self._piece[None, : frames * self._hop])
        latent = self._encoder.network(
            samples.to(self._encoder.device), self._position, self._memory
        )
        self._position.add_(frames)
        self._filled = 0
        codes: Codes = self._encoder.search.codes(latent)[0].cpu().numpy()
        return codes

    def _none(self) -> Codes:
        return np.zeros((self._encoder.config.num_codebooks, 0), dtype=np.int64)


def _check_samples(samples: FloatArray) -> None:
    if samples.ndim != 1 or samples.dtype != np.float32:
        found = f"{samples.dtype} {list(samples.shape)}"
        raise InvalidRequest(
            f"samples must be float32 [n], not {found}",
            param="samples",
            limit="float32 [n]",
            value=found,
        )
    finite = np.isfinite(samples)
    if not finite.all():
        first = int(finite.argmin())
        raise InvalidRequest(
            f"samples must be finite numbers, but sample {first} is {samples[first]}",
            param="samples",
            limit="finite",
            value=str(samples[first]),
        )
