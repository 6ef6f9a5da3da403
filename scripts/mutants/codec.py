"""Faults of the codec stage: what a stream remembers, and which samples are whose."""

from mutants.mutation import Mutation, faults

STREAMS = "codec/test_decoder_streams.py"
ENGINE = "engine/test_speech_engine.py"

MUTATIONS: tuple[Mutation, ...] = (
    *faults(
        "codec stage",
        (
            "a codec row is not reset for its next stream",
            "engine/codec_loop.py",
            "            self._state.reset(voice.row)\n",
            "",
            (f"{ENGINE}::test_streams_that_share_a_codec_row_one_after_another",),
        ),
        (
            "a stream's cursor does not move",
            "engine/codec_loop.py",
            "            voice.emitted += len(frames)\n",
            "",
            (f"{ENGINE}::test_stream_equals_the_whole",),
        ),
        (
            "samples go to the streams of a batch in another order",
            "engine/codec_loop.py",
            "zip(group, samples, strict=True)",
            "zip(group, samples[::-1], strict=True)",
            (f"{ENGINE}::test_survivors_of_aborts_and_failures",),
        ),
        (
            "one position serves all codec streams",
            "codec/transformer.py",
            "at = position[:, None] + ",
            "at = position[:1, None] + ",
            (f"{STREAMS}::test_streams_of_one_call_may_stand_anywhere",),
        ),
        (
            "a codec convolution's tail is not updated",
            "codec/layers.py",
            "    tail.copy_(joined[..., joined.shape[-1] - tail.shape[-1] :].detach())\n",
            "",
            (f"{STREAMS}::test_any_cut_gives_the_whole",),
        ),
        (
            "keys of frames before the stream's first are attended to",
            "codec/transformer.py",
            "(inside & begun[:, None, :])",
            "(inside & (begun[:, None, :] | True))",
            (f"{STREAMS}::test_a_whole_utterance_is_the_oracles",),
        ),
        (
            "the position does not move on",
            "codec/stream.py",
            "            state.position.add_(part.shape[-1])\n",
            "",
            (f"{STREAMS}::test_any_cut_gives_the_whole",),
        ),
    ),
)
