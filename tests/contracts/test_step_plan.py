"""What a plan says of itself."""

import numpy as np

from declaim.contracts.step import Span, StepKind, StepPlan, StepResult

ROWS = np.zeros((3, 3), np.int32)


def test_labelled_rows_and_length() -> None:
    chunk = Span("a", 0, 4, 3, False, ROWS, ROWS[0])
    last = Span("a", 0, 7, 3, True, ROWS, None)
    decode = Span("a", 0, 10, 1, True, None, None)
    assert [(s.labelled, s.length) for s in (chunk, last, decode)] == [(3, 7), (2, 10), (0, 11)]


def test_rows_and_sampled_spans_of_a_plan() -> None:
    chunk = Span("a", 0, 4, 3, False, ROWS, ROWS[0])
    decode = Span("b", 1, 10, 1, True, None, None)
    plan = StepPlan(StepKind.MIXED, (decode, chunk))
    assert plan.rows == 4
    assert plan.sampled == (decode,)
    assert (plan.releases, plan.admissions, plan.page_grants) == ((), (), ())


def test_kinds_and_an_empty_result() -> None:
    assert [str(kind) for kind in StepKind] == ["prefill", "decode", "mixed"]
    assert StepResult().frames == {}
    assert StepResult().frames is not StepResult().frames
