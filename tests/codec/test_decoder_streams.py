"""The decoder: equal to whole-utterance mathematics, however its frames are cut and batched."""

from collections.abc import Callable
from itertools import cycle

import numpy as np
import pytest
import torch
from codec_oracle import decode_whole
from torch import Tensor

from declaim.codec.config import CodecConfig
from declaim.codec.stream import PIECE_FRAMES, Decoder, StreamState, tail_shapes
from declaim.contracts.errors import InvalidRequest

Codes = Callable[..., Tensor]


def difference(found: Tensor, wanted: Tensor) -> float:
    """Largest difference in units of the wanted sound's peak; the counts must be equal."""
    assert found.shape == wanted.shape
    return float((found.double() - wanted.double()).abs().max() / wanted.abs().max())


def whole(decoder: Decoder, codes: Tensor) -> Tensor:
    return torch.from_numpy(decoder.decode(codes.numpy()))


def stream(decoder: Decoder, codes: Tensor, cuts: list[int]) -> Tensor:
    """One stream in cuts taken in turn, the last one short."""
    state, parts, first = decoder.new_state(1), [], 0
    for cut in cycle(cuts):
        if first >= codes.shape[1]:
            break
        parts.append(decoder.step(codes[None, :, first : first + cut], state)[0])
        first += cut
    return torch.cat(parts)


@pytest.mark.parametrize("frames", [1, 2, 150])
def test_a_whole_utterance_is_the_oracles(
    config: CodecConfig,
    weights: dict[str, Tensor],
    decoder: Decoder,
    make_codes: Codes,
    frames: int,
) -> None:
    codes = make_codes(frames)
    wanted = decode_whole(config, weights, codes)
    assert wanted.shape == (frames * config.hop,)
    assert 0.01 < wanted.std() < 0.9
    found = decoder.decode(codes.numpy())
    assert found.dtype == np.float32
    assert difference(torch.from_numpy(found), wanted) < 1e-5


@pytest.mark.parametrize("config", ["odd"], indirect=True)
def test_a_stream_longer_than_any_request_is_the_oracles(
    config: CodecConfig, weights: dict[str, Tensor], decoder: Decoder, make_codes: Codes
) -> None:
    codes = make_codes(2100)
    assert difference(whole(decoder, codes), decode_whole(config, weights, codes)) < 1e-5


@pytest.mark.parametrize(
    "cuts", [[1], [2], [3], [7], [10], [1, 2, 4, 25, 3]], ids=lambda cuts: "+".join(map(str, cuts))
)
def test_any_cut_gives_the_whole(decoder: Decoder, make_codes: Codes, cuts: list[int]) -> None:
    codes = make_codes(141)
    assert difference(stream(decoder, codes, cuts), whole(decoder, codes)) < 1e-5


def test_streams_of_one_call_may_stand_anywhere(decoder: Decoder, make_codes: Codes) -> None:
    codes = [make_codes(40, seed) for seed in range(3)]
    wanted = [whole(decoder, each) for each in codes]
    state, done = decoder.new_state(4), [0, 0, 0]
    parts: list[list[Tensor]] = [[], [], []]
    row = [2, 0, 3]
    for streams, frames in (
        ([0], 9),
        ([2, 0], 4),
        ([1], 1),
        ([0, 1, 2], 7),
        ([1, 2], 12),
        ([2, 1, 0], 16),
        ([0], 4),
        ([1], 4),
        ([2], 1),
    ):
        batch = torch.stack([codes[s][:, done[s] : done[s] + frames] for s in streams])
        sound = decoder.step(batch, state, [row[s] for s in streams])
        for index, s in enumerate(streams):
            parts[s].append(sound[index])
            done[s] += frames
    assert done == [40, 40, 40]
    assert state.position.tolist() == [40, 0, 40, 40]
    for s in range(3):
        assert difference(torch.cat(parts[s]), wanted[s]) < 1e-5


def test_a_step_leaves_other_rows_alone(decoder: Decoder, make_codes: Codes) -> None:
    state = decoder.new_state(3)
    decoder.step(make_codes(6)[None].expand(3, -1, -1), state)
    before = [state.snapshot(row) for row in range(3)]
    decoder.step(make_codes(5)[None], state, [1])
    for row in (0, 2):
        after = state.snapshot(row)
        assert all(torch.equal(after[name], entry) for name, entry in before[row].items())
    changed = state.snapshot(1)
    assert not any(torch.equal(changed[name], entry) for name, entry in before[1].items())


def test_sound_does_not_depend_on_later_frames(decoder: Decoder, make_codes: Codes) -> None:
    codes, other = make_codes(30), make_codes(30, seed=1)
    mixed = torch.cat((codes[:, :17], other[:, 17:]), 1)
    hop = decoder.config.hop
    first, second = whole(decoder, codes), whole(decoder, mixed)
    assert difference(second[: 17 * hop], first[: 17 * hop]) < 1e-6
    assert difference(second[17 * hop :], first[17 * hop :]) > 1e-2


@pytest.mark.parametrize("at", [1, 4, 20])
def test_a_restored_stream_goes_on_as_if_nothing_had_happened(
    config: CodecConfig, weights: dict[str, Tensor], decoder: Decoder, make_codes: Codes, at: int
) -> None:
    codes = make_codes(33)
    state = decoder.new_state(2)
    begun = decoder.step(codes[None, :, :at], state, [1])[0]
    snapshot = state.snapshot(1)
    decoder.step(make_codes(9, seed=3)[None], state, [1])
    another = Decoder(config, weights)
    resumed = another.new_state(3)
    resumed.restore(2, snapshot)
    rest = another.step(codes[None, :, at:], resumed, [2])[0]
    uninterrupted = decoder.new_state(1)
    decoder.step(codes[None, :, :at], uninterrupted)
    assert torch.equal(rest, decoder.step(codes[None, :, at:], uninterrupted)[0])
    assert difference(torch.cat((begun, rest)), whole(decoder, codes)) < 1e-5


def test_a_reset_row_is_a_new_stream(decoder: Decoder, make_codes: Codes) -> None:
    codes = make_codes(20)
    state = decoder.new_state(2)
    for tensor in (state.keys, state.values, *state.tails.values()):
        tensor.fill_(torch.nan)
    state.position.fill_(1000)
    state.reset(0)
    assert torch.equal(decoder.step(codes[None], state, [0])[0], whole(decoder, codes))
    assert state.position.tolist() == [20, 1000]


def test_a_snapshot_that_does_not_fit_is_refused(decoder: Decoder, make_codes: Codes) -> None:
    state = decoder.new_state(1)
    decoder.step(make_codes(3)[None], state)
    kept = state.snapshot(0)
    lacking = {name: entry for name, entry in kept.items() if name != "keys"}
    wider = {**kept, "values": kept["values"][:, 1:]}
    for snapshot, words in (
        (lacking, r"lacks \['keys'\]"),
        ({**kept, "extra": kept["keys"]}, r"\['extra'\] left over"),
        (wider, "values has shape"),
    ):
        zeroed = {name: torch.zeros_like(entry) for name, entry in snapshot.items()}
        with pytest.raises(ValueError, match=words):
            state.restore(0, zeroed)
    assert all(torch.equal(state.snapshot(0)[name], entry) for name, entry in kept.items())


def test_a_streams_memory_is_constant(decoder: Decoder, make_codes: Codes) -> None:
    state = decoder.new_state(2)
    size = state.stream_bytes
    entries = [state.position, state.keys, state.values, *state.tails.values()]
    addresses = [entry.data_ptr() for entry in entries]
    for frames in (1, 7, 150):
        decoder.step(make_codes(frames)[None], state, [1])
        decoder.step(make_codes(frames)[None].expand(2, -1, -1), state)
        assert state.stream_bytes == size
    after = [state.position, state.keys, state.values, *state.tails.values()]
    assert [entry.data_ptr() for entry in after] == addresses
    assert size == sum(entry.nbytes for entry in entries) // 2


def test_the_published_codecs_memory() -> None:
    keys_and_values = 8 * 127 * 2 * 1024 * 4
    columns = 2 * 6 * 1024 + 6 * 1024 + 6 * 96
    columns += sum(2 * width + 78 * width for width in (768, 384, 192, 96))
    state = StreamState.allocate(CodecConfig(), 1)
    assert state.stream_bytes == 8 + keys_and_values + 4 * columns


def test_every_tail_is_in_use(decoder: Decoder, make_codes: Codes) -> None:
    state = decoder.new_state(1)
    decoder.step(make_codes(12)[None], state)
    assert state.tails.keys() == tail_shapes(decoder.config).keys()
    assert all(tail.abs().min() > 0 for tail in state.tails.values())


def test_long_calls_run_in_bounded_pieces(decoder: Decoder, make_codes: Codes) -> None:
    seen, network = [], decoder.network

    def recorded(latent: Tensor, *arguments: Tensor) -> Tensor:
        seen.append(latent.shape[0] * latent.shape[1])
        return network(latent, *arguments)  # type: ignore[arg-type]

    decoder.network = recorded  # type: ignore[assignment]
    decoder.step(make_codes(2 * PIECE_FRAMES + 1)[None].expand(3, -1, -1), decoder.new_state(3))
    assert max(seen) <= PIECE_FRAMES
    assert sum(seen) == 3 * (2 * PIECE_FRAMES + 1)


@pytest.mark.parametrize("config", ["odd"], indirect=True)
def test_a_code_past_a_codebook_means_its_last_entry(decoder: Decoder, make_codes: Codes) -> None:
    codes = make_codes(8)
    assert codes[1:].max() > 15
    clamped = torch.cat((codes[:1], codes[1:].clamp(max=15)))
    assert torch.equal(whole(decoder, codes), whole(decoder, clamped))
    assert not torch.equal(whole(decoder, codes), whole(decoder, codes.clamp(max=15)))


def test_weights_that_are_not_numbers_do_not_crash(
    config: CodecConfig, weights: dict[str, Tensor], make_codes: Codes
) -> None:
    name = "quantizer.post_module.layers.0.attention.wqkv.weight"
    weights[name] = torch.full_like(weights[name], torch.nan)
    sound = Decoder(config, weights).decode(make_codes(5).numpy())
    assert sound.shape == (5 * config.hop,)
    assert np.isnan(sound).all()


def test_no_frames_give_no_samples(decoder: Decoder, make_codes: Codes) -> None:
    assert decoder.decode(make_codes(0).numpy()).shape == (0,)
    state = decoder.new_state(2)
    assert decoder.step(make_codes(0)[None], state, [1]).shape == (1, 0)
    assert decoder.step(make_codes(4)[None][:0], state, []).shape == (0, 4 * decoder.config.hop)
    assert state.position.tolist() == [0, 0]


@pytest.mark.parametrize("kind", ["float32", "bool", "flat", "short", "deep"])
def test_codes_of_another_shape_or_type_are_refused(
    decoder: Decoder, make_codes: Codes, kind: str
) -> None:
    codes = make_codes(3).numpy()
    wrong = {
        "float32": codes.astype(np.float32),
        "bool": codes > 3,
        "flat": codes[0],
        "short": codes[:-1],
        "deep": codes[None],
    }[kind]
    with pytest.raises(InvalidRequest) as caught:
        decoder.decode(wrong)
    assert caught.value.param == "codes"
    assert str(list(wrong.shape)) in caught.value.message


def test_codes_of_any_integer_type_and_layout_are_taken(
    decoder: Decoder, make_codes: Codes
) -> None:
    codes = make_codes(6).numpy()
    wanted = decoder.decode(codes)
    rows = np.ascontiguousarray(codes.T)
    rows.flags.writeable = False
    for same in (codes.astype(np.uint8), codes.astype(np.int32), rows.T):
        assert np.array_equal(decoder.decode(same), wanted)
