"""What a request may ask for: each limit from both sides, and values of the wrong type."""

import math
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from declaim.contracts.errors import InvalidRequest
from declaim.contracts.request import (
    FinishReason,
    FrameRequest,
    Prompt,
    SamplingParams,
    check_integer,
    shown,
)

PROMPT = Prompt(np.zeros((1, 3), np.int32), 0)


def sampling(**values: Any) -> SamplingParams:
    return replace(SamplingParams(), **values)


def ask(**values: Any) -> FrameRequest:
    return FrameRequest(**{"id": "a", "prompt": PROMPT, **values})


def refused(name: str, value: object, limit: str) -> str:
    """The message of the refusal of one value, its facts checked."""
    make = ask if name in ("id", "seed", "max_frames") else sampling
    with pytest.raises(InvalidRequest) as caught:
        make(**{name: value})
    error = caught.value
    assert error.param == name
    assert error.limit == limit
    assert error.value is value
    assert error.message.startswith(f"{name} must be ")
    return error.message


def test_defaults_are_the_model_familys() -> None:
    assert SamplingParams() == SamplingParams(1.0, 0.9, None, 30, 1.0, 30, 0.95, True)
    request = FrameRequest("a", PROMPT)
    assert (request.seed, request.max_frames) == (0, 2048)
    assert request.sampling == SamplingParams()


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", (0, 0.0, 1e-9, 1, 2, 2.0)),
        ("ras_temperature", (0.0, 0.5, 2.0)),
        ("top_p", (1e-9, 0.5, 1, 1.0)),
        ("ras_top_p", (1e-9, 0.5, 1.0)),
        ("top_k", (None, 1, 2**31 - 1)),
        ("codebook_top_k", (1, 2**31 - 1)),
        ("ras_top_k", (1, 2**31 - 1)),
        ("repetition_aware", (True, False)),
    ],
)
def test_sampling_values_inside_their_limits(name: str, values: tuple[object, ...]) -> None:
    for value in values:
        assert getattr(sampling(**{name: value}), name) == value


@pytest.mark.parametrize("name", ["temperature", "ras_temperature"])
@pytest.mark.parametrize(
    "value", [-1e-9, math.nextafter(2.0, 3.0), math.nan, math.inf, -math.inf, 10**400, -1]
)
def test_temperatures_outside(name: str, value: float) -> None:
    message = refused(name, value, "[0, 2]")
    assert message.startswith(f"{name} must be a number in [0, 2], not ")


@pytest.mark.parametrize("name", ["top_p", "ras_top_p"])
@pytest.mark.parametrize("value", [0, 0.0, -0.0, math.nextafter(1.0, 2.0), math.nan, math.inf])
def test_top_p_outside(name: str, value: float) -> None:
    message = refused(name, value, "(0, 1]")
    assert message == f"{name} must be a number in (0, 1], not {value!r}"


@pytest.mark.parametrize("name", ["temperature", "ras_temperature", "top_p", "ras_top_p"])
@pytest.mark.parametrize("value", [True, "0.5", None, [0.5], 0.5j, np.float32(0.5), np.int64(1)])
def test_numbers_of_the_wrong_type(name: str, value: object) -> None:
    refused(name, value, "(0, 1]" if "top_p" in name else "[0, 2]")


@pytest.mark.parametrize("name", ["top_k", "codebook_top_k", "ras_top_k"])
@pytest.mark.parametrize("value", [0, -1, 2**31, 3.0, True, "3", math.nan, np.int64(3)])
def test_top_k_outside(name: str, value: object) -> None:
    refused(name, value, "[1, 2147483647]")


@pytest.mark.parametrize("name", ["codebook_top_k", "ras_top_k"])
def test_only_the_main_draws_top_k_may_be_unlimited(name: str) -> None:
    refused(name, None, "[1, 2147483647]")


@pytest.mark.parametrize("value", [0, 1, None, "yes", np.True_])
def test_repetition_aware_is_a_bool(value: object) -> None:
    with pytest.raises(InvalidRequest, match="^repetition_aware must be true or false") as caught:
        sampling(repetition_aware=value)
    assert caught.value.param == "repetition_aware"


@pytest.mark.parametrize("value", ["", None, 3, b"a"])
def test_id_is_a_string_that_is_not_empty(value: object) -> None:
    with pytest.raises(InvalidRequest, match="^id must be a string that is not empty") as caught:
        ask(id=value)
    assert (caught.value.param, caught.value.value) == ("id", value)


def test_seed_and_max_frames_inside() -> None:
    assert [ask(seed=seed).seed for seed in (0, 2**63 - 1)] == [0, 2**63 - 1]
    assert [ask(max_frames=count).max_frames for count in (1, 2048)] == [1, 2048]


@pytest.mark.parametrize("value", [-1, 2**63, 1.0, True, None, "7", np.int64(7), math.nan])
def test_seed_outside(value: object) -> None:
    refused("seed", value, "[0, 9223372036854775807]")


@pytest.mark.parametrize("value", [0, -5, 2049, 40.0, True, None, "40", np.int32(40)])
def test_max_frames_outside(value: object) -> None:
    refused("max_frames", value, "[1, 2048]")


def test_a_numpy_integer_is_refused_by_its_type() -> None:
    with pytest.raises(InvalidRequest) as caught:
        ask(seed=np.int64(7))
    assert caught.value.message == (
        f"seed must be an integer in [0, 9223372036854775807], not {np.int64(7)!r} of type int64"
    )


@given(value=st.integers(), low=st.integers(), width=st.integers(0, 2**70))
def test_check_integer_is_its_interval(value: int, low: int, width: int) -> None:
    if low <= value <= low + width:
        check_integer("x", value, low, low + width)
    else:
        with pytest.raises(InvalidRequest):
            check_integer("x", value, low, low + width)


@given(value=st.floats() | st.integers() | st.booleans() | st.text() | st.none())
def test_temperature_is_its_interval(value: object) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and isinstance(value, int | float) and 0 <= value <= 2:
        assert sampling(temperature=value).temperature == value
    else:
        with pytest.raises(InvalidRequest):
            sampling(temperature=value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        (True, "True"),
        (None, "None"),
        ("a", "'a'"),
        ([1], "[1] of type list"),
        (-(2**128), "an integer of 129 bits"),
        (2**128 - 1, str(2**128 - 1)),
    ],
)
def test_shown(value: object, text: str) -> None:
    assert shown(value) == text


def test_shown_of_an_integer_that_python_does_not_print() -> None:
    assert shown(10**5000) == "an integer of 16610 bits"
    with pytest.raises(InvalidRequest, match="not an integer of 16610 bits"):
        ask(seed=10**5000)


@given(st.text() | st.binary() | st.integers() | st.lists(st.integers()))
def test_shown_is_short(value: object) -> None:
    assert len(shown(value)) <= 80


def test_a_request_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        ask().seed = 3  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        sampling().top_k = 3  # type: ignore[misc]


def test_finish_reasons_are_what_callers_read() -> None:
    assert [str(reason) for reason in FinishReason] == ["stop", "length", "abort", "error"]
