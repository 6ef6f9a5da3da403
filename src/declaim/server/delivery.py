"""One request's sound on its way to one client: the status line waits for the first audio.

What fails before it is a plain error; what fails after it breaks the connection off, so that no
client takes half for whole. A client that leaves ends its request at once.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from fastapi import Response

from declaim.contracts.engine import SpeechStream
from declaim.contracts.errors import Cancelled, DeclaimError, EngineFailed
from declaim.contracts.request import FloatArray
from declaim.server.encoding import (
    CONTENT_TYPES,
    SampleEncoder,
    stream_header,
    whole_body,
)
from declaim.server.errors import error_response
from declaim.server.outcomes import Outcomes

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class BrokenOff(Exception):
    """An answer that had begun and cannot be completed: the server must close the connection."""


@dataclass(frozen=True)
class AnswerFormat:
    """What the client gets. rate: samples a second. streamed: sent as it is made.

    extra: headers beside those that every audio answer has.
    """

    name: str
    source_rate: int
    rate: int
    streamed: bool
    seed: int
    extra: tuple[tuple[str, str], ...] = ()

    def headers(self, request_id: str) -> dict[str, str]:
        """The headers of an audio answer but for its length."""
        depth = {"x-bit-depth": "16"} if self.name == "pcm" else {}
        return {
            "content-type": CONTENT_TYPES[self.name],
            "x-request-id": request_id,
            "x-seed": str(self.seed),
            "x-sample-rate": str(self.rate),
            "x-channels": "1",
            **depth,
            "cache-control": "no-cache",
            "x-accel-buffering": "no",
            **dict(self.extra),
        }


class SpeechResponse(Response):
    """The answer that a stream makes; whatever happens, the stream is closed with it."""

    def __init__(self, stream: SpeechStream, answer: AnswerFormat, outcomes: Outcomes) -> None:
        super().__init__()
        self._stream = stream
        self._answer = answer
        self._outcomes = outcomes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Deliver, until the end or until the client has gone."""
        gone = asyncio.ensure_future(_disconnected(receive))
        work = asyncio.ensure_future(self._deliver(scope, receive, send))
        request_id = self._stream.request_id
        try:
            await asyncio.wait((gone, work), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        except DeclaimError as error:
            self._outcomes.fail(request_id, error)
            raise BrokenOff(error.message) from error
        except Exception:
            self._outcomes.fail(request_id, EngineFailed("a fault in declaim itself"))
            raise
        finally:
            await self._stream.aclose()
            await _cancelled(gone, work)
            self._outcomes.fail(request_id, Cancelled("the client went away"))

    async def _deliver(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises what breaks the stream after its first audio."""
        answer = self._answer
        try:
            first = await self._first_audio()
            encoder = SampleEncoder(answer.source_rate, answer.rate)
            data = encoder.feed(first)
            rest = None if answer.streamed else await self._rest_of_body(encoder)
        except DeclaimError as error:
            self._outcomes.fail(self._stream.request_id, error)
            await error_response(error, self._stream.request_id)(scope, receive, send)
            return
        if rest is not None:
            await self._send_whole(send, whole_body(answer.name, answer.rate, data + rest))
            return
        await self._send_start(send, {})
        await _send_part(send, stream_header(answer.name, answer.rate) + data)
        async for chunk in self._stream:
            await _send_part(send, encoder.feed(chunk.samples))
        await _send_part(send, encoder.finish())
        self._outcomes.finish(await self._stream.outcome())
        await _send_part(send, b"", more=False)

    async def _first_audio(self) -> FloatArray:
        async for chunk in self._stream:
            return chunk.samples
        self._outcomes.finish(await self._stream.outcome())
        raise EngineFailed(
            f"the model ended without any sound; another seed than {self._answer.seed} may help"
        )

    async def _rest_of_body(self, encoder: SampleEncoder) -> bytes:
        parts = [encoder.feed(chunk.samples) async for chunk in self._stream]
        self._outcomes.finish(await self._stream.outcome())
        return b"".join([*parts, encoder.finish()])

    async def _send_whole(self, send: Send, body: bytes) -> None:
        await self._send_start(send, {"content-length": str(len(body))})
        await _send_part(send, body, more=False)

    async def _send_start(self, send: Send, more: dict[str, str]) -> None:
        headers = self._answer.headers(self._stream.request_id) | more
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [
                    (name.encode("ascii"), value.encode("ascii")) for name, value in headers.items()
                ],
            }
        )


async def _send_part(send: Send, data: bytes, *, more: bool = True) -> None:
    """Send a part of the body; an empty one only to end it."""
    if data or not more:
        await send({"type": "http.response.body", "body": data, "more_body": more})


async def _disconnected(receive: Receive) -> None:
    """Until the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancelled(*tasks: "asyncio.Future[None]") -> None:
    """Cancel tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
