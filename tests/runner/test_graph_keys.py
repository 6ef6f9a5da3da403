"""Keys come from the plan's kind and padded sizes, by one function; sizes from the stage."""

import pytest

from declaim.config.schema import FrameStage
from declaim.contracts.errors import InvalidConfig
from declaim.contracts.step import StepKind
from declaim.runner.batch import StepSize
from declaim.runner.graphs import (
    CaptureSizes,
    GraphKey,
    GraphMode,
    ProgramName,
    capture_sizes,
    resolve_mode,
    route_step,
)

SIZES = CaptureSizes(rows=(1, 2, 4, 8, 16), streams=(1, 2, 4, 6))
ALL = frozenset({"PIECEWISE", "FULL", "FULL_AND_PIECEWISE"})


def stage(**options: object) -> FrameStage:
    return FrameStage(**options)  # type: ignore[arg-type]


def passes(kind: StepKind, size: tuple[int, int, int], mode: str) -> list[str]:
    """Each pass as program:size, or the program alone where it is eager; + marks a miss."""
    route = route_step(kind, StepSize(*size), GraphMode(mode), SIZES)
    assert route.kind is kind
    return [
        str(each.program) + (f":{each.key.size}" if each.key else "") + "+" * each.missed
        for each in route.passes
    ]


TABLE = {
    "NONE": (["decode_backbone", "frame"], ["backbone", "fill", "frame"]),
    "PIECEWISE": (["decode_backbone:4", "frame:4"], ["backbone:16", "fill:8", "frame:4"]),
    "FULL": (["decode:4"], ["backbone", "fill", "frame:4"]),
    "FULL_AND_PIECEWISE": (["decode:4"], ["backbone:16", "fill:8", "frame:4"]),
}


@pytest.mark.parametrize("mode", TABLE)
def test_the_table_of_modes(mode: str) -> None:
    decode, mixed = TABLE[mode]
    assert passes(StepKind.DECODE, (3, 0, 3), mode) == decode
    assert passes(StepKind.MIXED, (9, 6, 3), mode) == mixed


def test_a_one_row_prompt_is_no_decode() -> None:
    """The same sizes, another kind: another key and no whole program."""
    for kind in (StepKind.PREFILL, StepKind.MIXED):
        assert passes(kind, (1, 0, 1), "FULL_AND_PIECEWISE") == ["backbone:1", "frame:1"]
        assert passes(kind, (1, 0, 1), "PIECEWISE") == ["backbone:1", "frame:1"]
    assert passes(StepKind.DECODE, (1, 0, 1), "FULL_AND_PIECEWISE") == ["decode:1"]
    assert passes(StepKind.DECODE, (1, 0, 1), "PIECEWISE") == ["decode_backbone:1", "frame:1"]


def test_empty_passes_are_left_out() -> None:
    assert passes(StepKind.PREFILL, (5, 5, 0), "PIECEWISE") == ["backbone:8", "fill:8"]


def test_what_no_size_holds_is_missed() -> None:
    assert passes(StepKind.MIXED, (17, 9, 5), "PIECEWISE") == ["backbone+", "fill:16", "frame:6"]
    assert passes(StepKind.MIXED, (17, 9, 5), "FULL") == ["backbone", "fill", "frame:6"]


def test_padded_sizes_are_those_of_the_keys() -> None:
    """Rows that are replayed take the key's size; what runs eagerly keeps its own."""

    def size(kind: StepKind, exact: tuple[int, int, int], mode: str) -> StepSize:
        return route_step(kind, StepSize(*exact), GraphMode(mode), SIZES).size

    decode, mixed = StepKind.DECODE, StepKind.MIXED
    assert size(decode, (5, 0, 5), "FULL") == StepSize(6, 0, 6)
    assert size(decode, (5, 0, 5), "PIECEWISE") == StepSize(8, 0, 6)
    assert size(decode, (5, 0, 5), "NONE") == StepSize(5, 0, 5)
    assert size(mixed, (9, 3, 3), "PIECEWISE") == StepSize(16, 4, 4)
    assert size(mixed, (9, 3, 3), "FULL") == StepSize(9, 3, 4)
    assert size(mixed, (17, 3, 3), "PIECEWISE") == StepSize(17, 4, 4)


def test_keys_are_values() -> None:
    assert GraphKey(ProgramName.FRAME, 4) == GraphKey(ProgramName.FRAME, 4)
    assert len({GraphKey(ProgramName.FRAME, 4), GraphKey(ProgramName.FRAME, 4)}) == 1


def test_default_sizes() -> None:
    sizes = capture_sizes(stage(max_num_seqs=20, max_num_batched_tokens=300))
    assert sizes.rows == (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 128, 192, 256, 300)
    assert sizes.streams == (1, 2, 4, 8, 16, 20)
    assert capture_sizes(stage()).rows[-3:] == (384, 448, 512)
    assert capture_sizes(stage()).streams == (1, 2, 4, 8)


@pytest.mark.parametrize(
    ("seqs", "rows", "streams"),
    [(1, 1, (1,)), (3, 64, (1, 2, 3)), (4, 2, (1, 2)), (64, 64, (1, 2, 4, *range(8, 65, 8)))],
)
def test_sizes_stop_at_the_limits(seqs: int, rows: int, streams: tuple[int, ...]) -> None:
    sizes = capture_sizes(stage(max_num_seqs=seqs, max_num_batched_tokens=rows))
    assert sizes.streams == streams
    assert sizes.rows[0] == 1 and sizes.rows[-1] == rows


def test_given_sizes_replace_both_lists() -> None:
    given = stage(max_num_seqs=9, cudagraph_capture_sizes=(32, 2, 8, 16))
    assert capture_sizes(given) == CaptureSizes(rows=(2, 8, 16, 32), streams=(2, 8, 9))
    exact = stage(max_num_seqs=8, cudagraph_capture_sizes=(8,))
    assert capture_sizes(exact) == CaptureSizes(rows=(8,), streams=(8,))


def test_a_size_over_the_rows_of_a_step_is_refused() -> None:
    with pytest.raises(InvalidConfig) as caught:
        capture_sizes(stage(max_num_batched_tokens=64, cudagraph_capture_sizes=(8, 65)))
    error = caught.value
    assert (error.param, error.limit, error.value) == ("cudagraph_capture_sizes", 64, 65)
    assert "65" in error.message and "64" in error.message


@pytest.mark.parametrize(
    ("asked", "possible", "used"),
    [
        ("FULL_AND_PIECEWISE", {"FULL", "PIECEWISE"}, "FULL"),
        ("FULL_AND_PIECEWISE", {"PIECEWISE"}, "PIECEWISE"),
        ("FULL", {"PIECEWISE"}, "PIECEWISE"),
        ("FULL", set(), "NONE"),
        ("PIECEWISE", {"FULL"}, "NONE"),
        ("FULL_AND_PIECEWISE", set(), "NONE"),
    ],
)
def test_a_mode_that_is_lacking_falls_back_with_a_warning(
    asked: str, possible: set[str], used: str
) -> None:
    mode, warning = resolve_mode(GraphMode(asked), frozenset(possible), "odd")
    assert mode == used
    assert warning == f"cudagraph_mode {asked} is not available on platform odd: {used} is used"
    with pytest.raises(InvalidConfig) as caught:
        resolve_mode(GraphMode(asked), frozenset(possible), "odd", strict=True)
    assert caught.value.value == asked and "NONE" in caught.value.message


@pytest.mark.parametrize("mode", GraphMode)
def test_a_mode_that_is_there_is_taken_in_silence(mode: GraphMode) -> None:
    assert resolve_mode(mode, ALL, "cpu", strict=True) == (mode, None)
