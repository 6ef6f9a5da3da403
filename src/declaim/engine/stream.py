"""One request's sound on its way from the engine's threads to the caller's event loop.

The engine's side delivers chunks and one end; the caller's side takes them. Nothing is lost and
nothing blocks: a caller that pauses is seen by its count of frames not yet taken.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable

from declaim.contracts.engine import PcmChunk, SpeechOutcome
from declaim.contracts.errors import Cancelled, DeclaimError


class Stream:
    """The caller's end is an async iterator; `deliver`, `finish` and `fail` are for any thread.

    hop: samples a frame. loop: the caller's. on_taken(frames) is called in it after every chunk
    that is taken; on_close(), in any thread, when the caller gives the stream up before its end:
    closes it, drops it, or ends its loop.
    """

    def __init__(
        self,
        request_id: str,
        hop: int,
        loop: asyncio.AbstractEventLoop,
        on_taken: Callable[[int], None],
        on_close: Callable[[], None],
    ) -> None:
        self.request_id = request_id
        self.started = time.monotonic()
        self._loop = loop
        self._hop = hop
        self._on_taken = on_taken
        self._on_close = on_close
        self._chunks: deque[PcmChunk] = deque()
        self._changed = asyncio.Event()
        self._outcome: SpeechOutcome | None = None
        self._error: DeclaimError | None = None
        self._closed = False

    def deliver(self, chunk: PcmChunk) -> None:
        """Hand a chunk over, in order."""

        def add() -> None:
            if not self._closed:
                self._chunks.append(chunk)

        self._call(add)

    def finish(self, outcome: SpeechOutcome) -> None:
        """End well, after all chunks delivered so far."""

        def end() -> None:
            if self._error is None:
                self._outcome = outcome

        self._call(end)

    def fail(self, error: DeclaimError) -> None:
        """End broken, after all chunks delivered so far; the first end counts."""

        def end() -> None:
            if self._error is None and self._outcome is None:
                self._error = error

        self._call(end)

    def _call(self, change: Callable[[], object]) -> None:
        def apply() -> None:
            change()
            self._changed.set()

        try:
            self._loop.call_soon_threadsafe(apply)
        except RuntimeError:  # the caller's loop is closed: nobody is left to hear
            self._closed = True
            self._on_close()

    @property
    def over(self) -> bool:
        """Whether an end has arrived."""
        return self._outcome is not None or self._error is not None

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> PcmChunk:
        while not self._chunks:
            if self._error is not None:
                raise self._error
            if self._outcome is not None or self._closed:
                raise StopAsyncIteration
            await self._wait()
        chunk = self._chunks.popleft()
        self._on_taken(len(chunk.samples) // self._hop)
        return chunk

    async def outcome(self) -> SpeechOutcome:
        """Wait for the end; raises what broke the stream."""
        while not self.over:
            await self._wait()
        if self._error is not None:
            raise self._error
        assert self._outcome is not None
        return self._outcome

    async def aclose(self) -> None:
        """Drop what is left; abort the request unless it is over."""
        if self._closed:
            return
        self._closed = True
        self._chunks.clear()
        if not self.over:
            self._error = Cancelled("the stream was closed", param="id", value=self.request_id)
            self._on_close()
        self._changed.set()

    def __del__(self) -> None:
        if not (self._closed or self.over):
            self._on_close()

    async def _wait(self) -> None:
        """Until something arrives; several tasks may wait at once."""
        self._changed.clear()
        if not (self._chunks or self.over or self._closed):
            await self._changed.wait()
