"""Errors as JSON answers: the one table of errors decides the status."""

import json
from typing import Any

from fastapi import Response

from declaim.contracts.errors import (
    DeadlineExceeded,
    DeclaimError,
    EngineFailed,
    InvalidRequest,
    NotFound,
    OutOfMemory,
    Overloaded,
    row_of,
)

RETRY_SECONDS = 1

_HOPELESS = (EngineFailed.code, DeadlineExceeded.code, OutOfMemory.code)
"""Server errors that the same request would meet again."""


class JsonResponse(Response):
    """A JSON answer in plain ASCII, so that no string whatever can break it."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The body."""
        return json.dumps(content, separators=(",", ":")).encode("ascii")


def status_of(error: DeclaimError) -> int:
    """The HTTP status of an error; one that HTTP should never meet is a fault of ours."""
    return row_of(error).status or row_of(EngineFailed("")).status or 500


def error_body(error: DeclaimError) -> dict[str, Any]:
    """The fields of an error as clients of OpenAI's API read them."""
    kind = "invalid_request_error" if status_of(error) < 500 else "server_error"
    return {
        "error": {
            "message": error.message,
            "type": kind,
            "param": error.param,
            "code": error.code,
        }
    }


def error_response(error: DeclaimError, request_id: str | None = None) -> JsonResponse:
    """The answer to a request that failed before its first audio."""
    headers = {} if request_id is None else {"x-request-id": request_id}
    if error.code == Overloaded.code:
        headers["retry-after"] = str(RETRY_SECONDS)
    elif error.code in _HOPELESS:
        headers["x-should-retry"] = "false"
    return JsonResponse(error_body(error), status_of(error), headers)


def no_such_route(path: str) -> JsonResponse:
    """The answer where nothing is served."""
    return error_response(NotFound(f"there is nothing at {path}", param="path", value=path))


def wrong_method(method: str, path: str, allowed: str) -> JsonResponse:
    """The answer to a method that a route does not take; allowed: those that it does."""
    error = InvalidRequest(
        f"{path} does not take {method}", param="method", limit=allowed, value=method
    )
    return JsonResponse(error_body(error), 405, {"allow": allowed})
