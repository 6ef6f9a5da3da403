"""What is refused, with the parameter, the limit and the value."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from declaim.contracts.errors import InvalidConfig, InvalidRequest
from declaim.contracts.request import FrameRequest, Prompt
from declaim.scheduler.limits import SchedulerLimits
from declaim.scheduler.scheduler import Scheduler

Requests = Callable[..., FrameRequest]
Schedulers = Callable[..., Scheduler]


def test_over_the_context(request_of: Requests, scheduler_of: Schedulers) -> None:
    scheduler = scheduler_of(max_model_len=20)
    with pytest.raises(InvalidRequest) as caught:
        scheduler.add(request_of("a", 15, max_frames=6))
    assert caught.value.message == (
        "prompt rows (15) + max_frames (6) = 21, over the limit of 20 rows (max_model_len)"
    )
    assert (caught.value.param, caught.value.limit, caught.value.value) == ("max_frames", 20, 21)
    assert not scheduler.has_work
    scheduler.add(request_of("a", 15, max_frames=5))


def test_over_all_pages(request_of: Requests, scheduler_of: Schedulers) -> None:
    scheduler = scheduler_of(pages=5, page_size=4)
    with pytest.raises(InvalidRequest) as caught:
        scheduler.add(request_of("a", 15, max_frames=6))
    assert caught.value.message == (
        "prompt rows (15) + max_frames (6) need 6 pages of 4 rows, over the 5 that there are"
    )
    assert (caught.value.param, caught.value.limit, caught.value.value) == ("max_frames", 5, 6)
    assert not scheduler.has_work
    scheduler.add(request_of("a", 15, max_frames=5))
    assert scheduler.plan() is not None


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.zeros((0, 3), np.int32), "the prompt must have at least 1 row, not 0"),
        (np.zeros((2, 4), np.int32), r"must be int32 \[rows, 3\], not int32 \[2, 4\]"),
        (np.zeros((2, 2), np.int32), r"must be int32 \[rows, 3\], not int32 \[2, 2\]"),
        (np.zeros(3, np.int32), r"must be int32 \[rows, 3\], not int32 \[3\]"),
        (np.zeros((2, 3), np.int64), r"must be int32 \[rows, 3\], not int64 \[2, 3\]"),
        (np.zeros((2, 3), np.float32), r"must be int32 \[rows, 3\], not float32 \[2, 3\]"),
        (np.array([[1, 2, -7], [0, 0, 0]], np.int32), "no negative value, not -7"),
    ],
)
def test_prompts_that_the_model_cannot_take(
    scheduler_of: Schedulers, rows: np.ndarray[Any, Any], message: str
) -> None:
    scheduler = scheduler_of()
    with pytest.raises(InvalidRequest, match=message) as caught:
        scheduler.add(FrameRequest("a", Prompt(rows, 0), max_frames=1))
    assert caught.value.param == "prompt"
    assert not scheduler.has_work
    scheduler.check()


def test_a_refused_request_harms_no_other(request_of: Requests, scheduler_of: Schedulers) -> None:
    scheduler = scheduler_of()
    scheduler.add(request_of("a", 2))
    with pytest.raises(InvalidRequest):
        scheduler.add(request_of("b", 200))
    scheduler.add(request_of("b", 3))
    plan = scheduler.plan()
    assert plan is not None
    assert [(span.request_id, span.count) for span in plan.spans] == [("a", 2), ("b", 3)]


VALID = {
    "max_num_seqs": 2,
    "max_num_batched_tokens": 2,
    "pages": 1,
    "page_size": 1,
    "max_model_len": 1,
    "window": 0,
}


@pytest.mark.parametrize("name", VALID)
@pytest.mark.parametrize("value", [-1, 1.5, True, "4", None, np.int64(4)])
def test_limits_must_be_plain_integers(name: str, value: object) -> None:
    with pytest.raises(InvalidConfig, match=f"^{name} must be an integer of at least") as caught:
        SchedulerLimits(**cast(dict[str, int], {**VALID, name: value}))
    assert caught.value.param == name


@pytest.mark.parametrize("name", [name for name in VALID if name != "window"])
def test_limits_must_not_be_zero(name: str) -> None:
    with pytest.raises(InvalidConfig, match=f"^{name} must be an integer of at least 1, not 0$"):
        SchedulerLimits(**{**VALID, name: 0})


def test_a_step_must_hold_a_row_of_every_stream() -> None:
    SchedulerLimits(**VALID)
    with pytest.raises(InvalidConfig) as caught:
        SchedulerLimits(**{**VALID, "max_num_seqs": 3})
    assert caught.value.message.startswith(
        "max_num_batched_tokens (2) must be at least max_num_seqs (3)"
    )
    assert (caught.value.limit, caught.value.value) == (3, 2)


def test_a_chunk_of_no_rows_is_our_bug(request_of: Requests, scheduler_of: Schedulers) -> None:
    scheduler = scheduler_of(lambda request, at: 0)
    scheduler.add(request_of("a", 2))
    with pytest.raises(AssertionError, match="at least 1, not 0"):
        scheduler.plan()
