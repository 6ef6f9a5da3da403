"""Faults of the network and its stateful ops."""

from mutants.mutation import Mutation, faults

ORACLE = ("model/test_network_oracle.py::test_main_and_code_logits[7]",)
ATTEND = ("ops/test_attend.py::test_attend",)
CONV_CUT = ("ops/test_recurrent_ops.py::test_causal_conv_under_every_cut",)
RULE_CUT = ("ops/test_recurrent_ops.py::test_delta_rule_under_every_cut",)
UNLIKE = ("engine/test_bit_equality.py::test_unlike_cuts_side_by_side[one thread]",)
OTHERS = ("engine/test_bit_equality.py::test_among_others[one thread-3]",)

MUTATIONS: tuple[Mutation, ...] = (
    *faults(
        "recurrent state",
        (
            "the convolution tail is not updated",
            "ops/delta_rule.py",
            "        tail[slots] = held.to(tail.dtype)\n",
            "        pass\n",
            CONV_CUT,
        ),
        (
            "every span convolves with the tail of the first",
            "ops/delta_rule.py",
            "tail.index_select(0, slots)",
            "tail.index_select(0, slots[:1].expand(slots.shape))",
            OTHERS,
        ),
        (
            "the matrix is not updated",
            "ops/delta_rule.py",
            "        out = torch.empty_like(out).index_copy(0, index, out)\n"
            "    if state is not None:\n",
            "        out = torch.empty_like(out).index_copy(0, index, out)\n"
            "    if state is not None and len(out) < 0:\n",
            RULE_CUT,
        ),
        (
            "spans of unequal length exchange their matrices",
            "ops/delta_rule.py",
            "span_slots(spans, [numbers[i] for i in order])",
            "span_slots(spans, numbers)",
            OTHERS,
        ),
        (
            "a bfloat16 matrix is rounded once a span",
            "ops/delta_rule.py",
            "            s = s.to(state.dtype).float()\n",
            "            pass\n",
            ("ops/test_recurrent_ops.py::test_a_bfloat16_state_is_rounded_after_every_row",),
        ),
    ),
    *faults(
        "attention",
        (
            "scores past a lone row's end are not masked",
            "ops/attention.py",
            "            scores[span, :, :, full, :, rest:] = -torch.inf\n",
            "",
            ATTEND,
        ),
        (
            "rows of a span see the rows after them",
            "ops/attention.py",
            "place > own[:, None]",
            "place > own[-1]",
            ATTEND,
        ),
        (
            "values that were never written meet a weight of 0",
            "ops/attention.py",
            "        v[span, :, end:] = 0.0\n",
            "        pass\n",
            OTHERS,
        ),
        (
            "lone rows read the first block tables of the step",
            "ops/attention.py",
            "reader.read(spans.table[numbers],",
            "reader.read(spans.table[: len(numbers)],",
            UNLIKE,
        ),
    ),
    *faults(
        "network",
        (
            "code 0 is added to the backbone's input",
            "ops/frames.py",
            "code_sum(rows, codebooks, band, 1, codes)",
            "code_sum(rows, codebooks, band, 0, codes)",
            ("ops/test_frame_ops.py::test_embed",),
        ),
        (
            "all tower layers read code 0",
            "model/tower.py",
            "column=1 + self.code",
            "column=1",
            ORACLE,
        ),
        (
            "codes the backbone did not take are added in every layer",
            "model/tower.py",
            "            h = layer(h, labels, extra, spans, pages)\n            extra = None\n",
            "            h = layer(h, labels, extra, spans, pages)\n",
            ORACLE,
        ),
        (
            "the tower shares the backbone's pages",
            "model/tower.py",
            "state.pages[-len(self.layers) :]",
            "state.pages[: len(self.layers)]",
            ("engine/test_bit_equality.py::test_every_cut[one thread-sevens-seeded]",),
        ),
        (
            "experts are added in the order of their weights",
            "ops/experts.py",
            "    ordered, order = ids.sort(-1)\n",
            "    ordered, order = ids, torch.arange(ids.shape[1]).expand(ids.shape)\n",
            ("ops/test_experts_op.py::test_experts_of_a_row_are_added_in_ascending_id",),
        ),
        (
            "a lone row's product has another height",
            "ops/tiles.py",
            "    rows = x.shape[0]\n    tiles =",
            "    rows = x.shape[0]\n    if rows == 1:\n"
            "        return (x.float() @ weight.matrix)[:, : weight.columns]\n    tiles =",
            ("ops/test_dense.py",),
        ),
    ),
)
