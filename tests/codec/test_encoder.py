"""The encoder: equal to whole-clip mathematics, however its samples are cut."""

from collections.abc import Callable
from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest
import torch
from codec_oracle import Choices, encode_whole
from torch import Tensor

from declaim.codec.config import CodecConfig, EncoderTransformerConfig
from declaim.codec.encoder import PIECE_FRAMES, Encoder
from declaim.codec.encoder_network import EncoderMemory, encoder_tail_shapes
from declaim.codec.names import codec_shapes
from declaim.codec.stream import Decoder
from declaim.contracts.errors import InvalidRequest
from declaim.contracts.request import FloatArray, IntArray

MARGIN = 1e-3
"""Two cosines that are closer than this may be told apart differently in float32."""

VARIANTS = ("micro", "micro without", "odd", "odd with")
Sound = Callable[[float], FloatArray]


def with_transformer(config: CodecConfig, **changes: int) -> CodecConfig:
    """Another depth or window of the encoder's own transformer, another width of the encoder."""
    width = changes.pop("encoder_dim", config.encoder_dim)
    return replace(
        config, encoder_dim=width, encoder_transformer=EncoderTransformerConfig(**changes)
    )


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> str:
    """Both small codecs, with and without the encoder's own transformer."""
    name: str = request.param
    return name


@pytest.fixture
def config(variant: str, small_codecs: dict[str, CodecConfig]) -> CodecConfig:
    """The codec of the variant; "odd with" has a narrow window over several frames' columns."""
    config = small_codecs[variant.split()[0]]
    if variant == "micro without":
        return with_transformer(config, n_layer=0, window=8)
    if variant == "odd with":
        return with_transformer(config, n_layer=2, window=8, encoder_dim=16)
    return config


@pytest.fixture
def weights(
    config: CodecConfig, make_weights: Callable[[CodecConfig], dict[str, Tensor]]
) -> dict[str, Tensor]:
    """Random weights whose latent follows the sound, so that many entries are chosen."""
    weights = make_weights(config)
    for name, value in weights.items():
        if name.startswith(("encoder.", "quantizer.downsample.")):
            if name.endswith("conv.weight"):
                weights[name] = 2 * value
            elif name.endswith(".bias"):
                weights[name] = 0.2 * value
    return weights


@pytest.fixture
def encoder(config: CodecConfig, weights: dict[str, Tensor]) -> Encoder:
    """An encoder of the variant."""
    return Encoder(config, weights)


@pytest.fixture
def sound(config: CodecConfig) -> Sound:
    """Noise that swells and fades, of so many hops (a fraction rounded up to a sample)."""

    def get(hops: float) -> FloatArray:
        at = np.arange(int(np.ceil(hops * config.hop)))
        loudness = np.abs(np.sin(1.3 * at / config.hop))
        noise = np.random.default_rng(0).normal(0, 0.5, len(at))
        return (loudness * noise).astype(np.float32)

    return get


def recorded(encoder: Encoder) -> list[Tensor]:
    """Every latent [frames, latent_dim] that the encoder's network will give from now on."""
    latents, network = [], encoder.network

    def recording(samples: Tensor, position: Tensor, memory: EncoderMemory) -> Tensor:
        latents.append(network(samples, position, memory)[0])
        return latents[-1][None]

    encoder.network = recording  # type: ignore[assignment]
    return latents


def fed(encoder: Encoder, samples: FloatArray, cuts: list[int]) -> IntArray:
    """The codes of a stream whose samples come in cuts taken in turn, the last one short."""
    stream, parts, first = encoder.stream(), [], 0
    for cut in cycle(cuts):
        if first >= len(samples):
            break
        parts.append(stream.feed(samples[first : first + cut]))
        first += cut
    parts.append(stream.finish())
    return np.concatenate(parts, axis=1)


def assert_chosen(codes: IntArray, wanted: Choices) -> None:
    """In every frame the first code that differs, if any, was a choice between near equals."""
    assert codes.dtype == np.int64 and codes.shape == tuple(wanted.codes.shape)
    same = torch.from_numpy(codes.astype(np.int64)) == wanted.codes
    clear = wanted.margins > MARGIN
    assert clear.double().mean() > 0.9
    for frame in range(same.shape[1]):
        different = (~same[:, frame]).nonzero()
        assert not len(different) or not clear[int(different[0]), frame], frame


@pytest.mark.parametrize(
    "hops", [0.0001, -1, 1, 1.0001, 10.3, PIECE_FRAMES, 2 * PIECE_FRAMES + 2.3]
)
def test_a_clip_is_the_oracles(
    config: CodecConfig, weights: dict[str, Tensor], encoder: Encoder, sound: Sound, hops: float
) -> None:
    """One sample, a hop less one, a hop, a hop and one, and longer: -1 stands for the second."""
    samples = sound(hops) if hops > 0 else sound(1)[:-1]
    wanted = encode_whole(config, weights, torch.from_numpy(samples))
    latents = recorded(encoder)
    codes = encoder.encode(samples)
    assert codes.shape == (config.num_codebooks, -(-len(samples) // config.hop))
    difference = (torch.cat(latents).double() - wanted.latent).abs().max()
    assert difference / wanted.latent.abs().max() < 1e-4
    assert_chosen(codes, wanted)


def test_the_sound_decides(encoder: Encoder, sound: Sound) -> None:
    """The tests above would say little if every frame had the same codes."""
    codes = encoder.encode(sound(40))
    assert all(len(np.unique(row)) > 5 for row in codes)


@pytest.mark.parametrize("cuts", ["1", "100", "hop", "3 hops + 7", "mixed"])
def test_any_cut_gives_the_same_codes(encoder: Encoder, sound: Sound, cuts: str) -> None:
    hop = encoder.config.hop
    lengths = {
        "1": [1],
        "100": [100],
        "hop": [hop],
        "3 hops + 7": [3 * hop + 7],
        "mixed": [0, 1, 5 * hop, 3, 40 * hop, hop - 1, 17],
    }[cuts]
    samples = sound(2 * PIECE_FRAMES + 2.3)
    assert np.array_equal(fed(encoder, samples, lengths), encoder.encode(samples))


def test_codes_come_as_soon_as_a_piece_is_whole(encoder: Encoder, sound: Sound) -> None:
    samples, piece = sound(PIECE_FRAMES + 1), PIECE_FRAMES * encoder.config.hop
    stream = encoder.stream()
    assert stream.feed(samples[: piece - 1]).shape[1] == 0
    assert stream.feed(samples[piece - 1 : piece]).shape[1] == PIECE_FRAMES
    assert stream.feed(samples[piece:]).shape[1] == 0
    assert stream.finish().shape[1] == 1


def test_streams_do_not_mix(encoder: Encoder, sound: Sound) -> None:
    first, second = sound(PIECE_FRAMES + 2), sound(PIECE_FRAMES + 2)[::-1].copy()
    streams, parts = [encoder.stream(), encoder.stream()], [[], []]  # type: ignore[var-annotated]
    for at in range(0, len(first), 900):
        for index, samples in enumerate((first, second)):
            parts[index].append(streams[index].feed(samples[at : at + 900]))
    for index, samples in enumerate((first, second)):
        codes = np.concatenate((*parts[index], streams[index].finish()), axis=1)
        assert np.array_equal(codes, encoder.encode(samples))


def test_codes_do_not_depend_on_later_samples(encoder: Encoder, sound: Sound) -> None:
    samples, at = sound(20), 13 * encoder.config.hop
    other = samples.copy()
    other[at:] = -samples[at:]
    first, second = encoder.encode(samples), encoder.encode(other)
    assert np.array_equal(first[:, :13], second[:, :13])
    assert not np.array_equal(first[:, 13:], second[:, 13:])


def test_long_clips_run_in_bounded_pieces_and_memory(encoder: Encoder, sound: Sound) -> None:
    latents = recorded(encoder)
    memory = EncoderMemory.allocate(encoder.config, encoder.device)
    tensors = [*memory.inner, *memory.outer, *memory.tails.values()]
    addresses, size = [tensor.data_ptr() for tensor in tensors], memory.nbytes
    encoder.encode(sound(2 * PIECE_FRAMES + 1))
    assert [len(latent) for latent in latents] == [PIECE_FRAMES, PIECE_FRAMES, 1]
    position = torch.zeros(1, dtype=torch.int64)
    for hops in (1, 3, 20):
        encoder.network(torch.from_numpy(sound(hops))[None], position, memory)
        position += hops
    after = [*memory.inner, *memory.outer, *memory.tails.values()]
    assert [tensor.data_ptr() for tensor in after] == addresses
    assert memory.nbytes == size == sum(tensor.nbytes for tensor in tensors)
    assert memory.tails.keys() == encoder_tail_shapes(encoder.config).keys()
    assert all(tail.abs().max() > 0 for tail in memory.tails.values())


def test_the_published_codecs_memory() -> None:
    keys_and_values = 4 * (8 * 127 + 4 * 511) * 2 * 1024
    columns = 6 * 1 + 2 * 1024 + 2 * 6 * 1024
    columns += sum(
        78 * width + rate * width
        for width, rate in zip((64, 128, 256, 512), (2, 4, 8, 8), strict=True)
    )
    memory = EncoderMemory.allocate(CodecConfig(), torch.device("cpu"))
    assert memory.nbytes == keys_and_values + 4 * columns


@pytest.mark.parametrize("variant", ["odd"], indirect=True)
def test_of_equal_entries_the_lowest_index_is_chosen(
    config: CodecConfig, weights: dict[str, Tensor], sound: Sound
) -> None:
    plain = Encoder(config, weights).encode(sound(40))
    for name in codec_shapes(config):
        if name.endswith("codebook.weight"):
            weights[name] = torch.cat((weights[name], weights[name], weights[name][:5]))
    assert np.array_equal(Encoder(config, weights).encode(sound(40)), plain)


@pytest.mark.parametrize("variant", ["odd"], indirect=True)
def test_the_length_of_an_entry_does_not_count(
    config: CodecConfig, weights: dict[str, Tensor], sound: Sound
) -> None:
    plain = Encoder(config, weights).encode(sound(40))
    name = "quantizer.quantizer.quantizers.1.codebook.weight"
    weights[name] = weights[name] * torch.logspace(-2, 2, len(weights[name]))[:, None]
    assert np.array_equal(Encoder(config, weights).encode(sound(40)), plain)


def test_decoded_sound_can_be_encoded(
    config: CodecConfig, weights: dict[str, Tensor], encoder: Encoder, sound: Sound
) -> None:
    codes = encoder.encode(sound(9.5))
    again = encoder.encode(Decoder(config, weights).decode(codes))
    assert again.shape == codes.shape == (config.num_codebooks, 10)
    entries = [config.semantic_codebook_size, *[config.codebook_size] * (len(codes) - 1)]
    assert all(
        0 <= row.min() and row.max() < size for row, size in zip(again, entries, strict=True)
    )


def test_no_samples_give_no_frames(encoder: Encoder, sound: Sound) -> None:
    codes = encoder.encode(sound(0))
    assert codes.shape == (encoder.config.num_codebooks, 0) and codes.dtype == np.int64


@pytest.mark.parametrize("variant", ["odd"], indirect=True)
@pytest.mark.parametrize("kind", ["nan", "inf", "-inf", "float64", "int16", "stereo", "scalar"])
def test_what_is_no_sound_is_refused_and_not_taken(
    encoder: Encoder, sound: Sound, kind: str
) -> None:
    samples = sound(3.5)
    wrong = {
        "float64": samples.astype(np.float64),
        "int16": samples.astype(np.int16),
        "stereo": samples[None],
        "scalar": samples[0],
    }.get(kind)
    if wrong is None:
        wrong, named = samples.copy(), f"sample 50 is {kind}"
        wrong[50] = float(kind)
    else:
        named = f"{wrong.dtype} {list(wrong.shape)}"
    stream = encoder.stream()
    parts = [stream.feed(samples[:100])]
    for refusing in (stream.feed, encoder.encode):
        with pytest.raises(InvalidRequest, match=r"^samples must be ") as caught:
            refusing(wrong)
        assert caught.value.param == "samples"
        assert named in caught.value.message
    parts += [stream.feed(samples[100:]), stream.finish()]
    assert np.array_equal(np.concatenate(parts, axis=1), encoder.encode(samples))


def test_sound_beyond_full_scale_gives_codes(encoder: Encoder, sound: Sound) -> None:
    codes = encoder.encode(np.float32(1e30) * sound(3))
    assert codes.shape == (encoder.config.num_codebooks, 3)
    assert codes.min() >= 0 and codes.max() < encoder.config.semantic_codebook_size
