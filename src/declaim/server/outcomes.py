"""How the latest requests ended, for those who ask by id."""

from collections import OrderedDict
from typing import Any

from declaim.contracts.engine import SpeechOutcome
from declaim.contracts.errors import Cancelled, DeclaimError
from declaim.contracts.request import FinishReason
from declaim.server.errors import error_body


class Outcomes:
    """Records by request id, as JSON objects; the oldest ended one goes first."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._running: dict[str, dict[str, Any]] = {}
        self._ended: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def get(self, request_id: str) -> dict[str, Any] | None:
        """The record of a request, or None for one that is unknown or forgotten."""
        return self._running.get(request_id) or self._ended.get(request_id)

    def start(self, request_id: str, seed: int) -> None:
        """A request was admitted."""
        self._running[request_id] = {"id": request_id, "status": "running", "seed": seed}

    def finish(self, outcome: SpeechOutcome) -> None:
        """A request ended well."""
        timings = outcome.timings
        self._end(
            outcome.request_id,
            status="finished",
            finish_reason=str(outcome.reason),
            usage={
                "input_tokens": outcome.prompt_rows,
                "output_tokens": outcome.frames,
                "total_tokens": outcome.prompt_rows + outcome.frames,
            },
            frames=outcome.frames,
            frames_sha256=outcome.frames_sha256,
            timings={
                "admitted": timings.admitted,
                "first_audio": timings.first_audio,
                "finished": timings.finished,
            },
        )

    def fail(self, request_id: str, error: DeclaimError) -> None:
        """A request was broken, or given up by its caller; without effect on one that ended."""
        gone = error.code == Cancelled.code
        self._end(
            request_id,
            status="cancelled" if gone else "failed",
            finish_reason=str(FinishReason.ABORT if gone else FinishReason.ERROR),
            **error_body(error),
        )

    def _end(self, request_id: str, **facts: Any) -> None:
        record = self._running.pop(request_id, None)
        if record is None:
            return
        self._ended[request_id] = {**record, **facts}
        while len(self._ended) > self._kept:
            self._ended.popitem(last=False)
