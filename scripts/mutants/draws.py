"""Faults of the draws: noise, seeds, parameters, the repetition window."""

from mutants.mutation import Mutation, faults

DRAWS = "ops/test_draw_ops.py"
REPLAYED = ("engine/test_frames_from_logits.py",)

MUTATIONS: tuple[Mutation, ...] = (
    *faults(
        "seed and noise",
        (
            "the seed reaches the main draw only",
            "sampling/sampler.py",
            "noise[2 + index]",
            "noise[2 + index] * 0 + 0.5",
            REPLAYED,
        ),
        (
            "codes are drawn with the process's generator",
            "sampling/sampler.py",
            "noise[2 + index]",
            "noise[2 + index].clone().uniform_()",
            ("engine/test_bit_equality.py::test_no_global_generator_is_touched",),
        ),
        (
            "every head draws with the noise of the first",
            "sampling/sampler.py",
            "noise[2 + index]",
            "noise[2]",
            REPLAYED,
        ),
        (
            "every frame draws frame 0's noise",
            "sampling/sampler.py",
            "self.ops.noise(state.seed, state.counter, slot,",
            "self.ops.noise(state.seed, state.counter * 0, slot,",
            REPLAYED,
        ),
        (
            "noise depends on the slot",
            "ops/reference.py",
            "philox.uniform(seed[place],",
            "philox.uniform(seed[place] + place,",
            ("ops/test_noise.py::test_noise_does_not_depend_on_slot_place_number_or_width",),
        ),
        (
            "the seed of the first stream serves all",
            "ops/reference.py",
            "philox.uniform(seed[place],",
            "philox.uniform(seed[place[:1]].expand(place.shape),",
            ("engine/test_bit_equality.py::test_among_others[one thread-3]",),
        ),
        (
            "noise is read by rank",
            "ops/draws.py",
            "u.gather(1, indices)",
            "u",
            (f"{DRAWS}::test_noise_belongs_to_candidates_not_to_ranks",),
        ),
        (
            "the high word of a seed is lost",
            "ops/philox.py",
            "(seed & WORD, seed >> 32)",
            "(seed & WORD, seed * 0)",
            ("ops/test_noise.py",),
        ),
    ),
    *faults(
        "sampling rule",
        (
            "a code draw keeps the crossing candidate",
            "ops/draws.py",
            "keep_crossing=False",
            "keep_crossing=True",
            (f"{DRAWS}::test_a_code_draw_drops_the_crossing_candidate",),
        ),
        (
            "top_p 1 drops candidates by rounding",
            "ops/draws.py",
            "(over & (top_p < 1.0)[:, None])",
            "over",
            (f"{DRAWS}::test_nothing_is_dropped_at_top_p_one",),
        ),
        (
            "temperature 0 draws",
            "ops/draws.py",
            "torch.where(temperature == 0.0, ordered[1][:, 0], drawn)",
            "drawn",
            (f"{DRAWS}::test_temperature_zero_takes_the_lowest_of_the_largest",),
        ),
        (
            "top_k keeps one candidate more",
            "ops/draws.py",
            "(rank >= top_k[:, None])",
            "(rank > top_k[:, None])",
            (f"{DRAWS}::test_the_largest_candidate_always_stays",),
        ),
        (
            "the top_p of the first stream serves all",
            "ops/draws.py",
            "        parameters.top_p[index],\n        keep_crossing=True,",
            "        parameters.top_p[index[:1]],\n        keep_crossing=True,",
            (f"{DRAWS}::test_every_stream_draws_with_its_own_parameters",),
        ),
        (
            "the temperature of the first stream serves all codes",
            "ops/draws.py",
            "        parameters.temperature[index],\n        parameters.code_top_k[index],",
            "        parameters.temperature[index[:1]],\n        parameters.code_top_k[index],",
            (f"{DRAWS}::test_every_stream_draws_with_its_own_parameters",),
        ),
    ),
    *faults(
        "repetition window",
        (
            "the window of the first stream serves all",
            "ops/draws.py",
            "(window[index] == token[:, None])",
            "(window[index[:1]] == token[:, None])",
            (f"{DRAWS}::test_rows_stand_alone",),
        ),
        (
            "the repetition draw is taken where it is switched off",
            "ops/draws.py",
            " & (parameters.ras_enabled[index] != 0)",
            "",
            (f"{DRAWS}::test_when_the_second_draw_is_taken",),
        ),
        (
            "the end token counts as a repetition",
            "ops/draws.py",
            "    taken = semantic & repeated",
            "    taken = repeated",
            (f"{DRAWS}::test_when_the_second_draw_is_taken",),
        ),
        (
            "the window does not move on",
            "ops/frames.py",
            "torch.cat([state.window[place, 1:], frames[:, :1]], 1)",
            "state.window[place]",
            ("ops/test_frame_ops.py::test_write_frame",),
        ),
        (
            "the frame counter does not move on",
            "ops/frames.py",
            "state.counter[place] + 1",
            "state.counter[place]",
            ("ops/test_frame_ops.py::test_write_frame",),
        ),
        (
            "the frame of the first stream is everybody's last frame",
            "ops/frames.py",
            "    state.last[place] = frames\n",
            "    state.last[place] = frames[:1]\n",
            ("ops/test_frame_ops.py::test_write_frame",),
        ),
    ),
)
