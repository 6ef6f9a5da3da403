"""The streaming decoder against whole-utterance float64 mathematics, however frames are cut."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from naive_decoder import NaiveDecoder
from torch import Tensor

from declaim.codec.config import CodecConfig, EncoderTransformerConfig, WindowTransformerConfig
from declaim.codec.names import codec_shapes
from declaim.codec.stream import Decoder, StreamState
from declaim.contracts.errors import InvalidRequest
from declaim.nano.codec import random_codec

FRAMES = 23
CUTS = [[1] * 23, [2] * 11 + [1], [3] * 7 + [2], [7, 7, 7, 2], [10, 10, 3], [1, 9, 2, 11]]

WIDE = CodecConfig(
    encoder_dim=16,
    encoder_rates=(2, 4),
    decoder_dim=24,
    decoder_rates=(4, 2),
    latent_dim=16,
    downsample_factor=(2, 2),
    codebook_dim=3,
    semantic_codebook_size=32,
    codebook_size=8,
    n_residual_codebooks=3,
    pre_post=WindowTransformerConfig(
        n_layer=2, n_head=2, head_dim=8, intermediate_size=24, window=5, rope_base=100.0
    ),
    encoder_transformer=EncoderTransformerConfig(n_layer=1, window=4),
)
"""Two heads, a window that ends within the clip, residual books narrower than the first."""

UNEVEN = CodecConfig(
    encoder_dim=3,
    encoder_rates=(12,),
    decoder_dim=16,
    decoder_rates=(3, 2, 2),
    latent_dim=12,
    downsample_factor=(2, 3),
    codebook_dim=4,
    semantic_codebook_size=16,
    codebook_size=16,
    n_residual_codebooks=1,
    pre_post=WindowTransformerConfig(
        n_layer=1,
        n_head=1,
        head_dim=12,
        intermediate_size=20,
        window=40,
        norm_eps=1e-3,
        rope_table_dtype="float32",
    ),
    encoder_transformer=EncoderTransformerConfig(n_layer=0),
)
"""Unlike strides in every place, a window longer than the clip, no encoder transformer."""


@dataclass(frozen=True)
class Case:
    """A codec, codes [Q, FRAMES] with some outside the residual books, and their true sound."""

    decoder: Decoder
    codes: Tensor
    sound: Tensor

    @property
    def config(self) -> CodecConfig:
        return self.decoder.config

    def assert_sound(self, samples: Tensor, first: int = 0) -> None:
        expected = self.sound[first * self.config.hop :][: len(samples)]
        assert samples.dtype == torch.float32 and samples.shape == expected.shape
        assert (samples.double() - expected).abs().max() <= 1e-5 * self.sound.abs().max()


def _naive(config: CodecConfig, weights: Mapping[str, Tensor]) -> NaiveDecoder:
    block = config.pre_post
    tables = {"bfloat16": torch.bfloat16, "float32": torch.float32}
    return NaiveDecoder(
        weights=weights,
        rates=config.decoder_rates,
        factors=config.downsample_factor[::-1],
        layers=block.n_layer,
        heads=block.n_head,
        window=block.window,
        base=block.rope_base,
        eps=block.norm_eps,
        residual=config.n_residual_codebooks,
        table=tables[block.rope_table_dtype],
    )


def _weights(config: CodecConfig) -> dict[str, Tensor]:
    return {name: value.float() for name, value in random_codec(codec_shapes(config), 5)}


def _codes(config: CodecConfig, seed: int, frames: int = FRAMES) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (config.num_codebooks, frames)
    return torch.randint(0, config.semantic_codebook_size, shape, generator=generator)


@pytest.fixture(scope="module", params=[WIDE, UNEVEN], ids=["wide", "uneven"])
def case(request: pytest.FixtureRequest) -> Case:
    config: CodecConfig = request.param
    weights, codes = _weights(config), _codes(config, 1)
    return Case(Decoder(config, weights), codes, _naive(config, weights).decode(codes))


def _pieces(codes: Tensor, counts: list[int]) -> Iterator[Tensor]:
    yield from codes.split(counts, -1)


def test_a_whole_utterance(case: Case) -> None:
    samples = case.decoder.decode(case.codes.numpy())
    assert isinstance(samples, np.ndarray) and samples.dtype == np.float32
    assert samples.shape == (FRAMES * case.config.hop,)
    case.assert_sound(torch.from_numpy(samples))
    assert case.sound.std() > 0.01


@pytest.mark.parametrize("counts", CUTS, ids=lambda counts: f"{counts[0]}-{len(counts)}")
def test_any_cut_is_the_whole(case: Case, counts: list[int]) -> None:
    state = case.decoder.new_state(1)
    size = state.stream_bytes
    heard = []
    for piece in _pieces(case.codes, counts):
        samples = case.decoder.step(piece[None], state)
        assert samples.shape == (1, piece.shape[-1] * case.config.hop)
        assert state.stream_bytes == size
        heard.append(samples[0])
    case.assert_sound(torch.cat(heard))
    assert state.position.tolist() == [FRAMES]


def test_pieces_of_a_long_utterance(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("declaim.codec.stream.PIECE_FRAMES", 4)
    case.assert_sound(torch.from_numpy(case.decoder.decode(case.codes.numpy())))


def test_a_prefix_sounds_as_in_the_whole(case: Case) -> None:
    for frames in (1, 4, FRAMES - 1):
        case.assert_sound(torch.from_numpy(case.decoder.decode(case.codes[:, :frames].numpy())))


def test_no_frames_give_no_samples(case: Case) -> None:
    assert case.decoder.decode(case.codes[:, :0].numpy()).shape == (0,)
    state = case.decoder.new_state(2)
    case.decoder.step(case.codes[None, :, :3].expand(2, -1, -1), state)
    before = state.snapshot(1)
    assert case.decoder.step(case.codes[None, :, :0].expand(2, -1, -1), state).shape == (2, 0)
    assert all(torch.equal(before[name], value) for name, value in state.snapshot(1).items())


def test_streams_at_different_positions_share_a_call(case: Case) -> None:
    """Three streams begin at different times and are stepped in changing order and company."""
    decoder, hop = case.decoder, case.config.hop
    codes = [_codes(case.config, seed) for seed in (11, 12, 13)]
    state = decoder.new_state(4)
    heard: list[list[Tensor]] = [[], [], []]
    done = [0, 0, 0]
    for rows, frames in (([0], 5), ([2, 0], 2), ([0, 1, 2], 6), ([1, 2], 1), ([2, 0], 3)):
        batch = torch.stack([codes[row][:, done[row] : done[row] + frames] for row in rows])
        samples = decoder.step(batch, state, rows)
        for row, part in zip(rows, samples, strict=True):
            heard[row].append(part)
            done[row] += frames
    for row, parts in enumerate(heard):
        alone = decoder.decode(codes[row][:, : done[row]].numpy())
        together = torch.cat(parts).numpy()
        assert together.shape == (done[row] * hop,)
        assert np.abs(together - alone).max() <= 1e-5 * np.abs(alone).max()
    assert state.position.tolist() == [*done, 0]
    assert not any(entry.any() for entry in state.snapshot(3).values())


@pytest.mark.parametrize("frame", [0, 1, 9])
def test_a_snapshot_goes_on_elsewhere(case: Case, frame: int) -> None:
    first = case.decoder.new_state(1)
    case.decoder.step(case.codes[None, :, :frame], first)
    kept = first.snapshot(0)
    rest = case.decoder.step(case.codes[None, :, frame:], first)[0]
    other = case.decoder.new_state(3)
    case.decoder.step(_codes(case.config, 2)[None].expand(3, -1, -1), other)
    neighbour = other.snapshot(0)
    other.restore(1, kept)
    again = case.decoder.step(case.codes[None, :, frame:], other, [1])[0]
    assert torch.equal(again, rest)
    case.assert_sound(again, first=frame)
    assert all(torch.equal(other.snapshot(0)[name], value) for name, value in neighbour.items())


def test_a_reset_stream_begins_anew(case: Case) -> None:
    state = case.decoder.new_state(2)
    case.decoder.step(_codes(case.config, 3)[None].expand(2, -1, -1), state)
    state.reset(1)
    case.assert_sound(case.decoder.step(case.codes[None], state, [1])[0])


def test_a_snapshot_that_does_not_fit_changes_nothing(case: Case) -> None:
    state = case.decoder.new_state(1)
    case.decoder.step(case.codes[None, :, :3], state)
    before = state.snapshot(0)
    name = "tails.decoder.model.0.conv"
    short = {key: value for key, value in before.items() if key != name}
    zeros = {key: torch.zeros_like(value) for key, value in before.items()}
    for snapshot, message in (
        (short, rf"lacks \['{name}'\]"),
        (zeros | {"more": torch.zeros(1)}, r"\['more'\] left over"),
        (zeros | {name: torch.zeros(1, 2)}, rf"{name} has shape \(1, 2\)"),
    ):
        with pytest.raises(ValueError, match=message):
            state.restore(0, snapshot)
        assert all(torch.equal(before[key], value) for key, value in state.snapshot(0).items())


def test_the_state_of_a_full_size_stream() -> None:
    """Keys and values of 8 x 127 frames of 1024, and 0.5 MB of convolution tails."""
    state = StreamState.allocate(CodecConfig(), 1, "meta")
    tails = 2 * 6 * 1024 + 6 * 1024 + 6 * 96
    width = 1536
    for _ in range(4):
        tails += width + 78 * (width // 2)
        width //= 2
    assert state.stream_bytes == 4 * (8 * 127 * 2 * 1024 + tails) + 8


def test_positions_have_no_end() -> None:
    """With a window of one frame, attention does not depend on how far a stream has come."""
    config = replace(WIDE, pre_post=replace(WIDE.pre_post, window=1))
    weights, codes = _weights(config), _codes(config, 7)
    decoder = Decoder(config, weights)
    state = decoder.new_state(2)
    state.position[1] = 5_000_000
    near, far = decoder.step(codes[None].expand(2, -1, -1), state)
    expected = _naive(config, weights).decode(codes)
    assert (near.double() - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert (far - near).abs().max() <= 1e-5 * near.abs().max()


def test_codes_that_are_none(case: Case) -> None:
    codes = case.codes.numpy()
    wrongs: list[Any] = [codes[:-1], codes[0], codes[None], codes.astype(np.float32), codes > 3]
    for wrong in wrongs:
        with pytest.raises(InvalidRequest, match="codes must be integers"):
            case.decoder.decode(wrong)
