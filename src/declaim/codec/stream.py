"""Frames to sound as a stream: what a stream remembers, and the decoder that moves it on.

The sound of a stream does not depend on how its frames are cut into calls, nor on which other
streams share a call. A stream's memory is constant in size from the first frame to the last.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from declaim.codec.config import CodecConfig
from declaim.codec.dac import DecoderNetwork
from declaim.codec.layers import Tails, Weights
from declaim.codec.names import CONVNEXT_KERNEL, DILATIONS, EDGE_KERNEL, UNIT_KERNEL, decode_shapes
from declaim.codec.quantizer import Quantizers
from declaim.contracts.errors import InvalidRequest
from declaim.contracts.request import FloatArray, IntArray

PIECE_FRAMES = 64
"""Frames, over all streams of a call, that are decoded at once: bounds a call's memory."""


def tail_shapes(config: CodecConfig) -> dict[str, tuple[int, int]]:
    """Name of each layer that looks back -> (channels, columns) of what it keeps."""
    latent, tails = config.latent_dim, dict[str, tuple[int, int]]()
    for stage in range(len(config.upsample_factor)):
        tails[f"quantizer.upsample.{stage}.1.dwconv.conv"] = (latent, CONVNEXT_KERNEL - 1)
    tails["decoder.model.0.conv"] = (latent, EDGE_KERNEL - 1)
    width = config.decoder_dim
    for stage in range(1, len(config.decoder_rates) + 1):
        prefix = f"decoder.model.{stage}.block."
        tails[f"{prefix}1.conv"] = (width, 1)
        width //= 2
        for unit, dilation in enumerate(DILATIONS, 2):
            tails[f"{prefix}{unit}.block.1.conv"] = (width, (UNIT_KERNEL - 1) * dilation)
    tails[f"decoder.model.{len(config.decoder_rates) + 2}.conv"] = (width, EDGE_KERNEL - 1)
    return tails


@dataclass(frozen=True)
class StreamState:
    """What the streams of a decoder remember, one row a stream; fixed buffers.

    position int64 [rows]: frames decoded so far.
    keys, values [layers, rows, window - 1, heads, head_dim]: of the last frames, right-aligned.
    tails: layer name -> [rows, channels, columns], its last input columns.
    """

    position: Tensor
    keys: Tensor
    values: Tensor
    tails: Tails

    @classmethod
    def allocate(
        cls, config: CodecConfig, rows: int, device: torch.device | str = "cpu"
    ) -> "StreamState":
        """State of `rows` streams that have not begun."""
        block = config.pre_post
        cache = (block.n_layer, rows, block.window - 1, block.n_head, block.head_dim)
        return cls(
            position=torch.zeros(rows, dtype=torch.int64, device=device),
            keys=torch.zeros(cache, device=device),
            values=torch.zeros(cache, device=device),
            tails={
                name: torch.zeros(rows, *shape, device=device)
                for name, shape in tail_shapes(config).items()
            },
        )

    @property
    def rows(self) -> int:
        """Streams that the state holds."""
        return self.position.shape[0]

    @property
    def stream_bytes(self) -> int:
        """Bytes of one stream."""
        return sum(entry.nbytes for entry in self._entries(0).values())

    def reset(self, row: int) -> None:
        """Make a row a stream that has not begun."""
        for entry in self._entries(row).values():
            entry.zero_()

    def snapshot(self, row: int) -> dict[str, Tensor]:
        """A copy of everything that one stream remembers, by name."""
        return {name: entry.clone() for name, entry in self._entries(row).items()}

    def restore(self, row: int, snapshot: Mapping[str, Tensor]) -> None:
        """Make a row the stream of a snapshot, of this or of another state of the same codec.

        Raises ValueError, and changes nothing, if an entry is missing, left over or of another
        shape.
        """
        entries = self._entries(row)
        missing = sorted(entries.keys() - snapshot.keys())
        left_over = sorted(snapshot.keys() - entries.keys())
        if missing or left_over:
            raise ValueError(f"a snapshot lacks {missing} and has {left_over} left over")
        for name, entry in entries.items():
            if snapshot[name].shape != entry.shape:
                found, wanted = tuple(snapshot[name].shape), tuple(entry.shape)
                raise ValueError(f"a snapshot's {name} has shape {found}, not {wanted}")
        for name, entry in entries.items():
            entry.copy_(snapshot[name])

    def gather(self, rows: Sequence[int]) -> "StreamState":
        """A copy of some rows, in the order given."""
        index = torch.tensor(rows, dtype=torch.int64, device=self.position.device)
        return StreamState(
            position=self.position[index],
            keys=self.keys[:, index],
            values=self.values[:, index],
            tails={name: tail[index] for name, tail in self.tails.items()},
        )

    def scatter(self, rows: Sequence[int], source: "StreamState") -> None:
        """Overwrite some rows with those of another state, in the order given."""
        index = torch.tensor(rows, dtype=torch.int64, device=self.position.device)
        self.position.index_copy_(0, index, source.position)
        self.keys.index_copy_(1, index, source.keys)
        self.values.index_copy_(1, index, source.values)
        for name, tail in self.tails.items():
            tail.index_copy_(0, index, source.tails[name])

    def _entries(self, row: int) -> dict[str, Tensor]:
        """Views of one row, by name."""
        entries = {
            "position": self.position[row],
            "keys": self.keys[:, row],
            "values": self.values[:, row],
        }
        return entries | {f"tails.{name}": tail[row] for name, tail in self.tails.items()}


class Decoder:
    """The decode side of one codec: codes to samples, whole or as streams.

    weights: float32 tensors by folded published name; the encoder's may be among them.
    """

    def __init__(
        self, config: CodecConfig, weights: Weights, device: torch.device | str = "cpu"
    ) -> None:
        self.config = config
        self.device = torch.device(device)
        placed = {name: weights[name].to(self.device) for name in decode_shapes(config)}
        self.quantizers = Quantizers(config, placed)
        self.network = DecoderNetwork(config, placed)

    def new_state(self, rows: int) -> StreamState:
        """State of `rows` streams that have not begun, on the decoder's device."""
        return StreamState.allocate(self.config, rows, self.device)

    def decode(self, codes: IntArray) -> FloatArray:
        """A whole utterance: integer codes [Q, frames] -> float32 samples [frames * hop].

        Samples are in [-1, 1]. Raises InvalidRequest for codes of another shape or type.
        """
        _check_codes(codes.shape, codes.dtype.kind in "iu", self.config)
        tensor = torch.from_numpy(codes.astype(np.int64))[None]
        samples: FloatArray = self.step(tensor, self.new_state(1))[0].cpu().numpy()
        return samples

    @torch.no_grad()
    def step(self, codes: Tensor, state: StreamState, rows: Sequence[int] | None = None) -> Tensor:
        """The next frames of some streams: int64 codes [batch, Q, frames] -> their samples.

        rows: the state's row of each stream of the batch, no row twice; None means all rows in
        order. Those rows of the state are moved on by `frames`, the others are untouched.
        Samples are float32 [batch, frames * hop] in [-1, 1]. Raises InvalidRequest for codes of
        another shape or type.
        """
        assert codes.dim() == 3
        _check_codes(tuple(codes.shape[1:]), codes.dtype == torch.int64, self.config)
        if rows is None:
            assert codes.shape[0] == state.rows
            return self._advance(codes, state)
        assert len(set(rows)) == len(rows) == codes.shape[0]
        working = state.gather(rows)
        samples = self._advance(codes, working)
        state.scatter(rows, working)
        return samples

    def _advance(self, codes: Tensor, state: StreamState) -> Tensor:
        batch, _, frames = codes.shape
        hop = self.config.hop
        samples = torch.empty(batch, frames * hop, device=self.device)
        piece = max(1, PIECE_FRAMES // max(1, batch))
        for first in range(0, frames if batch else 0, piece):
            part = codes[:, :, first : first + piece].to(self.device)
            latent = self.quantizers.latent(part)
            cache = (state.keys, state.values)
            sound = self.network(latent, state.position, cache, state.tails)
            samples[:, first * hop : first * hop + sound.shape[1]] = sound
            state.position.add_(part.shape[-1])
        return samples


def _check_codes(shape: tuple[int, ...], integers: bool, config: CodecConfig) -> None:
    expected = f"integers [{config.num_codebooks}, frames]"
    if not integers or len(shape) != 2 or shape[0] != config.num_codebooks:
        found = f"{'integers' if integers else 'another type'} {list(shape)}"
        raise InvalidRequest(
            f"codes must be {expected}, not {found}", param="codes", limit=expected, value=found
        )
