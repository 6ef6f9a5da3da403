"""Every error that a user can meet: one class a kind, one table for HTTP and exit codes.

Knows nothing of HTTP or of the command line beyond the two numbers in the table.
"""

from dataclasses import dataclass
from typing import ClassVar


class DeclaimError(Exception):
    """A failure with a name: the parameter, its limit and the value that was found.

    The message is one sentence that a user can act on; it never holds a traceback or an
    internal path. `param`, `limit` and `value` repeat its facts for programs.
    """

    code: ClassVar[str] = "engine_failed"

    def __init__(
        self, message: str, *, param: str | None = None, limit: object = None, value: object = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.limit = limit
        self.value = value


class InvalidRequest(DeclaimError):
    """A request holds a value that cannot be served."""

    code = "invalid_request"


class NotFound(DeclaimError):
    """A name or a path that does not exist."""

    code = "not_found"


class Conflict(DeclaimError):
    """An identifier that is already in use."""

    code = "conflict"


class Unauthorized(DeclaimError):
    """A request without a valid key."""

    code = "unauthorized"


class TooLarge(DeclaimError):
    """An input over a byte or duration limit."""

    code = "too_large"


class Overloaded(DeclaimError):
    """No room now, or shutting down: try again later."""

    code = "overloaded"


class DeadlineExceeded(DeclaimError):
    """A request's own deadline passed."""

    code = "deadline_exceeded"


class InvalidConfig(DeclaimError):
    """A deploy file, flag or environment variable that cannot be used."""

    code = "invalid_config"


class InvalidCheckpoint(DeclaimError):
    """A model or codec directory that cannot be loaded."""

    code = "invalid_checkpoint"


class OutOfMemory(DeclaimError):
    """The device's memory does not hold what was asked for."""

    code = "out_of_memory"


class EngineFailed(DeclaimError):
    """The engine itself failed; the fault is ours."""

    code = "engine_failed"


class Cancelled(DeclaimError):
    """The caller went away or asked to stop."""

    code = "cancelled"


@dataclass(frozen=True)
class ErrorRow:
    """One kind of error and its two numbers; `status` is None where HTTP never meets it."""

    error: type[DeclaimError]
    status: int | None
    exit_code: int


ERROR_TABLE: tuple[ErrorRow, ...] = (
    ErrorRow(InvalidRequest, 400, 2),
    ErrorRow(NotFound, 404, 2),
    ErrorRow(Conflict, 409, 2),
    ErrorRow(Unauthorized, 401, 2),
    ErrorRow(TooLarge, 413, 2),
    ErrorRow(Overloaded, 503, 5),
    ErrorRow(DeadlineExceeded, 504, 5),
    ErrorRow(InvalidConfig, None, 3),
    ErrorRow(InvalidCheckpoint, None, 3),
    ErrorRow(OutOfMemory, 503, 4),
    ErrorRow(EngineFailed, 500, 6),
    ErrorRow(Cancelled, 499, 130),
)

EXIT_DIFFERENCE = 1
"""Exit code of a comparison that found a difference."""


def row_of(error: DeclaimError) -> ErrorRow:
    """The table's row for an error, by its code: a subclass of a kind has that kind's row."""
    return next(row for row in ERROR_TABLE if row.error.code == error.code)
