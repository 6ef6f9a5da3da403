"""Faults of graph keys, capture and replay."""

from mutants.mutation import Mutation, faults

KEYS = "runner/test_graph_keys.py"
NULL = "runner/test_null_runner.py"
REPLAY = "runner/test_replay.py"
RECORDER = "platforms/test_recorder.py"
MODES = "engine/test_graph_modes.py"

MUTATIONS: tuple[Mutation, ...] = (
    *faults(
        "graph key",
        (
            "the key comes from shapes: a prompt chunk of one row is replayed as a decode",
            "runner/graphs.py",
            "    decode = kind is StepKind.DECODE\n",
            "    decode = not exact.labelled and exact.rows == exact.streams\n",
            (f"{KEYS}::test_a_one_row_prompt_is_no_decode",),
        ),
        (
            "capture builds its keys as if every step were mixed",
            "runner/graphs.py",
            "                route = self.route(kind, exact)\n",
            "                route = self.route(StepKind.MIXED, exact)\n",
            (f"{NULL}::test_captured_keys_are_all_a_step_can_ask_for",),
        ),
        (
            "a graph one size too small is replayed",
            "runner/graphs.py",
            "    return sizes[place] if place < len(sizes) else None\n",
            "    return sizes[max(place - 1, 0)] if place < len(sizes) else None\n",
            (f"{KEYS}::test_padded_sizes_are_those_of_the_keys",),
        ),
        (
            "what no size holds is replayed at the largest",
            "runner/graphs.py",
            "    return sizes[place] if place < len(sizes) else None\n",
            "    return sizes[min(place, len(sizes) - 1)]\n",
            (f"{KEYS}::test_what_no_size_holds_is_missed",),
        ),
        (
            "a mode that the platform lacks is taken all the same",
            "runner/graphs.py",
            "    if asked is GraphMode.NONE or asked in possible:\n",
            "    if asked in GraphMode:\n",
            (f"{KEYS}::test_a_mode_that_is_lacking_falls_back_with_a_warning",),
        ),
    ),
    *faults(
        "replay",
        (
            "a graph is replayed on tensors of the step's exact size",
            "runner/graphs.py",
            "            padded[count] = size\n",
            "            pass\n",
            (f"{MODES}::test_three_streams_after_four_in_a_graph_of_four",),
        ),
        (
            "a decode graph pads its streams and not its rows",
            "runner/graphs.py",
            'add(ProgramName.DECODE, "streams", "rows", replayed=True)',
            'add(ProgramName.DECODE, "streams", replayed=True)',
            (f"{MODES}::test_three_streams_after_four_in_a_graph_of_four",),
        ),
        (
            "fill and frame graphs gather from the rows they were captured with",
            "runner/graphs.py",
            "            size = replace(size, rows=batch.most_rows)\n",
            "            pass\n",
            (f"{REPLAY}::test_replay_equals_eager[FULL_AND_PIECEWISE-0]",),
        ),
        (
            "a miss is not counted",
            "runner/graphs.py",
            "                self.misses[each.program] += 1\n",
            "                pass\n",
            (f"{NULL}::test_a_miss_is_eager_and_counted_and_never_captured",),
        ),
        (
            "the frames of a whole decode graph are not drawn",
            "runner/graphs.py",
            "        if program in WHOLE:\n            model.run_frame(step, state)\n",
            "        if program is ProgramName.FRAME:\n            model.run_frame(step, state)\n",
            (f"{MODES}::test_three_streams_after_four_in_a_graph_of_four",),
        ),
    ),
    *faults(
        "capture",
        (
            "an op is computed while it is recorded and leaves its state behind",
            "platforms/recorder.py",
            "            self.bound.append((method, arguments, keywords))\n",
            "            self.bound.append((method, arguments, keywords))\n"
            "            method(*arguments, **keywords)\n",
            (f"{RECORDER}::test_nothing_is_computed_while_recording",),
        ),
        (
            "warm-up steps are counted",
            "runner/graphs.py",
            "            counter.clear()\n",
            "            pass\n",
            (f"{NULL}::test_every_step_is_replayed_and_counted",),
        ),
        (
            "a buffer is given away in the call that still reads it",
            "platforms/recorder.py",
            "if entry[2] >= born[buffer]]",
            "if entry[2] > born[buffer]]",
            (f"{RECORDER}::test_buffers_are_used_again_once_they_are_read",),
        ),
        (
            "a view into a buffer is replayed from the buffer's start",
            "platforms/recorder.py",
            "            first = start + value.storage_offset()\n",
            "            first = start\n",
            (f"{REPLAY}::test_replay_equals_eager[FULL-0]",),
        ),
        (
            "arithmetic outside ops is let through while recording",
            "platforms/guard.py",
            "        if not given.issuperset(made):\n            self.refuse(str(func))\n",
            "",
            (f"{RECORDER}::test_work_outside_ops_is_refused_with_its_line",),
        ),
        (
            "a host read is let through while recording",
            "platforms/guard.py",
            "        if name in HOST_READS:\n            self.guard.refuse(name)\n",
            "",
            (f"{RECORDER}::test_work_outside_ops_is_refused_with_its_line",),
        ),
    ),
)
