"""Faults of slots, padding and step tensors: whose memory a row reads and writes."""

from mutants.mutation import Mutation, faults

ADMISSION = ("state/test_slot_admission.py",)
TENSORS = ("runner/test_batch_tensors.py",)
CUT = ("engine/test_bit_equality.py::test_every_cut[one thread-sevens-seeded]",)
OTHERS = ("engine/test_bit_equality.py::test_among_others[one thread-3]",)
REUSED = ("engine/test_bit_equality.py::test_reused_slot[one thread]",)
PADDING = ("engine/test_bit_equality.py::test_padding[one thread-3]",)

MUTATIONS: tuple[Mutation, ...] = (
    *faults(
        "slot not reset",
        (
            "the delta-rule matrix is kept at admission",
            "state/recurrent.py",
            "        self.matrix[slot].zero_()\n",
            "",
            REUSED,
        ),
        (
            "the convolution tail is kept at admission",
            "state/recurrent.py",
            "        self.tail[slot].zero_()\n",
            "",
            REUSED,
        ),
        (
            "a first span of one row is taken for a decode and resets nothing",
            "runner/runner.py",
            "            state.admit(admission)\n",
            "            if any(s.slot == admission.slot and s.count > 1 for s in plan.spans):\n"
            "                state.admit(admission)\n",
            REUSED,
        ),
        (
            "the repetition window of the former owner stays before a short prompt",
            "state/frames.py",
            "        self.window[slot].fill_(-1)\n",
            "",
            ADMISSION,
        ),
        (
            "the prompt's main tokens do not enter the window",
            "state/frames.py",
            "        if window:\n",
            "        if not window:\n",
            ADMISSION,
        ),
        (
            "the frame counter of the former owner runs on",
            "state/frames.py",
            "        self.counter[slot] = admission.frame_index\n",
            "",
            ADMISSION,
        ),
        (
            "the seed of the former owner stays",
            "state/frames.py",
            "        self.seed[slot] = admission.seed\n",
            "",
            ADMISSION,
        ),
        (
            "top_p of the former owner stays",
            "state/frames.py",
            "        target.top_p[slot] = params.top_p\n",
            "",
            ADMISSION,
        ),
        (
            "the last frame of the former owner stays",
            "state/frames.py",
            "        self.last[slot].zero_()\n",
            "",
            ADMISSION,
        ),
    ),
    *faults(
        "padding",
        (
            "padding streams stand on slot 0",
            "runner/batch.py",
            "        self.slot.host[used:count] = null_slot\n",
            "        self.slot.host[used:count] = 0\n",
            PADDING,
        ),
        (
            "padding rows are stored in page 0",
            "runner/batch.py",
            "        self.page.host[row:padded] = layout.pages\n",
            "        self.page.host[row:padded] = 0\n",
            PADDING,
        ),
        (
            "padding rows gather the last frame of slot 0",
            "runner/batch.py",
            "(self.last_slot, -1)",
            "(self.last_slot, 0)",
            TENSORS,
        ),
        (
            "padding rows gather row 0 of the step",
            "runner/batch.py",
            "        self.index.host[row:padded] = -1\n",
            "        self.index.host[row:padded] = 0\n",
            TENSORS,
        ),
        (
            "padding spans keep the lengths of an earlier step",
            "runner/batch.py",
            "        self.length.host[used:count] = 0\n",
            "",
            TENSORS,
        ),
        (
            "padding spans keep the block tables of an earlier step",
            "runner/batch.py",
            "        self.table.host[used:count] = layout.pages\n",
            "",
            TENSORS,
        ),
    ),
    *faults(
        "step tensors",
        (
            "a chunk's last row is labelled with a text row",
            "runner/batch.py",
            "0 if span.next_row is None else span.next_row",
            "0",
            CUT,
        ),
        (
            "a later chunk stands one position late",
            "runner/batch.py",
            "every.append(RowRange(span.slot, row, span.first, span.count))",
            "every.append(RowRange(span.slot, row, span.first + (span.first > 0), span.count))",
            CUT,
        ),
        (
            "the labelled rows of a later chunk stand at position 0",
            "runner/batch.py",
            "labelled.append(RowRange(span.slot, row, span.first, span.labelled))",
            "labelled.append(RowRange(span.slot, row, 0, span.labelled))",
            CUT,
        ),
        (
            "the fill takes the sampled row too",
            "contracts/step.py",
            "return self.count - 1 if self.sampled else self.count",
            "return self.count",
            ("scheduler/test_scheduler_plans.py::test_whole_prompt_in_one_step",),
        ),
        (
            "the rows of every span come from the start of the step",
            "runner/batch.py",
            "            sampled.append(RowRange(span.slot, row + last, span.first + last, 1))\n",
            "            sampled.append(RowRange(span.slot, last, span.first + last, 1))\n",
            OTHERS,
        ),
        (
            "new pages follow those of the former owner in the block table",
            "runner/batch.py",
            "        self.granted[slot] = 0\n",
            "",
            REUSED,
        ),
        (
            "a freed slot's block table keeps its pages",
            "runner/batch.py",
            "        self.tables[slot] = self.layout.pages\n",
            "",
            TENSORS,
        ),
    ),
)
