"""The table of errors, walked: every class once, with the numbers that callers rely on."""

import inspect
import pickle

import pytest

from declaim.contracts import errors
from declaim.contracts.errors import ERROR_TABLE, EXIT_DIFFERENCE, DeclaimError, ErrorRow, row_of

NUMBERS: dict[str, tuple[str, int | None, int]] = {
    "InvalidRequest": ("invalid_request", 400, 2),
    "NotFound": ("not_found", 404, 2),
    "Conflict": ("conflict", 409, 2),
    "Unauthorized": ("unauthorized", 401, 2),
    "TooLarge": ("too_large", 413, 2),
    "Overloaded": ("overloaded", 503, 5),
    "DeadlineExceeded": ("deadline_exceeded", 504, 5),
    "InvalidConfig": ("invalid_config", None, 3),
    "InvalidCheckpoint": ("invalid_checkpoint", None, 3),
    "OutOfMemory": ("out_of_memory", 503, 4),
    "EngineFailed": ("engine_failed", 500, 6),
    "Cancelled": ("cancelled", 499, 130),
}


def kinds(base: type[DeclaimError] = DeclaimError) -> list[type[DeclaimError]]:
    """Every subclass, at any depth."""
    return [kind for child in base.__subclasses__() for kind in (child, *kinds(child))]


def test_every_error_of_the_module_stands_in_the_table_once() -> None:
    defined = [
        value
        for _, value in inspect.getmembers(errors, inspect.isclass)
        if issubclass(value, DeclaimError) and value is not DeclaimError
    ]
    table = [row.error for row in ERROR_TABLE]
    assert len(set(table)) == len(table)
    assert set(table) == set(defined)


def test_every_error_of_the_package_has_its_own_code() -> None:
    package = [kind for kind in kinds() if kind.__module__.startswith("declaim.")]
    assert set(package) == {row.error for row in ERROR_TABLE}
    assert len({kind.code for kind in package}) == len(package)


def test_numbers() -> None:
    table = {row.error.__name__: (row.error.code, row.status, row.exit_code) for row in ERROR_TABLE}
    assert table == NUMBERS


def test_a_found_difference_exits_1_and_no_error_does() -> None:
    assert EXIT_DIFFERENCE == 1
    assert not {row.exit_code for row in ERROR_TABLE} & {0, EXIT_DIFFERENCE}


@pytest.mark.parametrize("row", ERROR_TABLE, ids=lambda row: row.error.__name__)
def test_an_error_finds_its_row_and_keeps_its_facts(row: ErrorRow) -> None:
    error = row.error("x must be at most 3, not 4", param="x", limit=3, value=4)
    assert row_of(error) is row
    assert str(error) == error.message == "x must be at most 3, not 4"
    assert (error.param, error.limit, error.value) == ("x", 3, 4)
    bare = row.error("no room")
    assert (bare.param, bare.limit, bare.value) == (None, None, None)


def test_a_kind_of_a_kind_has_that_kinds_row() -> None:
    class SlotTaken(errors.Conflict):
        pass

    assert row_of(SlotTaken("taken")).error is errors.Conflict
    assert row_of(DeclaimError("something")).error is errors.EngineFailed


def test_errors_cross_a_process_boundary() -> None:
    error = errors.TooLarge("the clip is too long", param="clip", limit=60, value=61.5)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is errors.TooLarge
    assert (copy.message, copy.param, copy.limit, copy.value) == (
        "the clip is too long",
        "clip",
        60,
        61.5,
    )
