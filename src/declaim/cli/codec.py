"""`declaim codec decode` and `declaim codec encode`: codes to sound and back, without a model."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from declaim.audio.files import open_whole
from declaim.audio.wav import to_int16, wav_header
from declaim.audio.wav_source import WavSource, open_wav
from declaim.cli.arrays import integer_columns, open_integers
from declaim.contracts.errors import InvalidRequest
from declaim.contracts.request import FloatArray, IntArray

if TYPE_CHECKING:
    from declaim.codec.config import CodecConfig

CodecOption = Annotated[Path, typer.Option(help="Codec file, or a directory that holds one.")]
ChunkOption = Annotated[
    int | None, typer.Option(min=1, help="Frames read and written at a time; default: all.")
]


def commands() -> typer.Typer:
    """The group `codec` with its two commands."""
    group = typer.Typer(no_args_is_help=True, help="Codes to sound and back; needs no model.")
    group.command()(decode)
    group.command()(encode)
    return group


def decode(
    codes: Annotated[Path, typer.Argument(help="Codes, integers [Q, frames], as .npy.")],
    codec: CodecOption,
    output: Annotated[Path, typer.Option("--output", "-o", help="16-bit mono WAV file.")],
    chunk: ChunkOption = None,
) -> None:
    """Codes to a WAV file at the codec's rate."""
    from declaim.codec.reader import find_codec, open_codec

    stored = open_codec(find_codec(codec, None))
    config = stored.config
    array = open_integers(codes, "codes")
    _check_shape(array, codes, config)
    frames = array.shape[1]
    header = wav_header(frames * config.hop, config.sample_rate)
    with open_whole(output) as file:
        import torch

        from declaim.codec.stream import Decoder

        decoder, nan = Decoder(config, stored.weights(decode_only=True)), 0
        state = decoder.new_state(1)
        file.write(header)
        for first in range(0, frames, chunk or frames):
            part = array[:, first : first + (chunk or frames)]
            _check_range(part, first, codes, config)
            tensor = torch.from_numpy(part.astype(np.int64))[None]
            values, lost = to_int16(decoder.step(tensor, state)[0].numpy())
            nan += lost
            file.write(values.astype("<i2").tobytes())
    if nan:
        print(f"declaim: WARNING: {nan} samples were not numbers; they are silent", file=sys.stderr)
    _report(output, frames, config)


def encode(
    sound: Annotated[Path, typer.Argument(metavar="WAV", help="16-bit mono or stereo WAV file.")],
    codec: CodecOption,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Codes, int64 [Q, frames], as .npy.")
    ],
    chunk: ChunkOption = None,
) -> None:
    """A WAV file to codes.

    Stereo is mixed to mono, another rate is resampled.
    """
    from declaim.codec.reader import find_codec, open_codec

    stored = open_codec(find_codec(codec, None))
    config = stored.config
    with open_wav(sound) as source:
        frames = _frames_of(source, sound, config)
        with integer_columns(output, (config.num_codebooks, frames)) as write:
            from declaim.codec.encoder import Encoder

            stream = Encoder(config, stored.encode_weights()).stream()
            for samples in _at_codec_rate(source, config, chunk or frames):
                write(stream.feed(samples))
            write(stream.finish())
    _report(output, frames, config)


def _report(output: Path, frames: int, config: "CodecConfig") -> None:
    print(f"{output}: {frames} frames, {frames / config.frame_rate:.2f} s", file=sys.stderr)


def _check_shape(array: IntArray, path: Path, config: "CodecConfig") -> None:
    rows, frames = array.shape
    if rows != config.num_codebooks or not frames:
        limit = f"codes [{config.num_codebooks}, frames] of at least one frame"
        raise InvalidRequest(
            f"{path} must hold {limit}, not {[rows, frames]}",
            param="codes",
            limit=limit,
            value=[rows, frames],
        )


def _check_range(part: IntArray, first: int, path: Path, config: "CodecConfig") -> None:
    """Residual codes may come from a model whose range is as wide as the semantic codebook."""
    semantic = config.semantic_codebook_size
    highest = np.full((len(part), 1), max(semantic, config.codebook_size) - 1)
    highest[0] = semantic - 1
    outside = (part < 0) | (part > highest)
    if outside.any():
        row, frame = np.argwhere(outside)[0]
        limit, value = f"[0, {highest[row, 0]}]", int(part[row, frame])
        raise InvalidRequest(
            f"{path} holds code {value} in codebook {row}, frame {first + frame}; "
            f"it must be in {limit}",
            param="codes",
            limit=limit,
            value=value,
        )


def _frames_of(source: WavSource, path: Path, config: "CodecConfig") -> int:
    from declaim.audio.resample import resampled_count

    samples = resampled_count(source.samples, source.rate, config.sample_rate)
    if not samples:
        raise InvalidRequest(
            f"{path} must last at least one sample at {config.sample_rate} a second, "
            f"not {source.samples} at {source.rate}",
            param="input",
            limit=1,
            value=samples,
        )
    return -(-samples // config.hop)


def _at_codec_rate(source: WavSource, config: "CodecConfig", chunk: int) -> Iterator[FloatArray]:
    """The sound in parts of about a frame, in [-1, 1]; `chunk` of them are read at once.

    The resampler's rounding depends on the parts, which therefore do not depend on the chunk.
    """
    from declaim.audio.resample import StreamResampler

    part = -(-config.hop * source.rate // config.sample_rate)
    resampler = StreamResampler(source.rate, config.sample_rate)
    for block in source.blocks(chunk * part):
        for first in range(0, len(block), part):
            yield resampler.feed(block[first : first + part]).clip(-1, 1)
    yield resampler.finish().clip(-1, 1)
