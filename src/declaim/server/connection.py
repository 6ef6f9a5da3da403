"""uvicorn with readers that must read, and with an end that breaks streams off."""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from declaim.contracts.engine import SpeechEngine
from declaim.contracts.errors import InvalidConfig
from declaim.server.delivery import BrokenOff

KEEP_ALIVE_SECONDS = 75
"""An idle connection lives longer here than in any client, which then never meets a closed one."""

SHUTDOWN_SECONDS = 5
WRITE_SECONDS = 30.0
BACKLOG = 2048
MAX_PORT = 65535


class ReadersProtocol(H11Protocol):
    """A connection that is cut when its peer takes nothing for `write_seconds`.

    The application then sees that its client has gone. Cut too is one whose peer does not
    bring a request's head to its end in `head_seconds`, however slowly it sends.
    """

    write_seconds = WRITE_SECONDS
    head_seconds: float = KEEP_ALIVE_SECONDS

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._patience: asyncio.TimerHandle | None = None
        self._head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A peer is there."""
        super().connection_made(transport)
        self._head = self.loop.call_later(self.head_seconds, transport.abort)

    def data_received(self, data: bytes) -> None:
        """A part of a request."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_head()
        elif self._head is None:
            self._head = self.loop.call_later(self.head_seconds, self.transport.abort)

    def pause_writing(self) -> None:
        """The peer has fallen behind."""
        super().pause_writing()
        self._stop_waiting()
        self._patience = self.loop.call_later(self.write_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """The peer has caught up."""
        super().resume_writing()
        self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over."""
        self._stop_waiting()
        self._stop_head()
        super().connection_lost(exc)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _stop_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None


class BrokenOffLines(logging.Filter):
    """Answers that were broken off, in one line each; for the logger `uvicorn.error`."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Every record passes; those of broken answers lose their traceback."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, BrokenOff):
            record.msg = f"an answer was broken off: {error}"
            record.exc_info = None
        return True


class SpeechServer(uvicorn.Server):
    """Serves an application and ends its engine with itself.

    announce(url) is called once requests are taken. At the end the engine is closed first, so that
    running streams break off at once instead of holding the end up.
    """

    def __init__(
        self,
        app: FastAPI,
        engine: SpeechEngine,
        announce: Callable[[str], None],
        *,
        protocol: type[ReadersProtocol] = ReadersProtocol,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol,
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            )
        )
        self._engine = engine
        self._announce = announce

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until told to stop; the engine is closed even if listening fails."""
        try:
            await super().serve(sockets)
        finally:
            if not self.started:
                await self._engine.close()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen."""
        await super().startup(sockets)
        for listener in sockets or []:
            self._announce(url_of(listener))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the engine, then what is left."""
        await self._engine.close()
        await super().shutdown(sockets)


def open_listener(host: str, port: int) -> socket.socket:
    """A socket that has its address and does not listen yet; port 0 takes a free one.

    Raises InvalidConfig where the address cannot be had.
    """
    if not 0 <= port <= MAX_PORT:
        raise InvalidConfig(
            f"port must be in [0, {MAX_PORT}], not {port}", param="port", limit=MAX_PORT, value=port
        )
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise _no_listener(host, port, error) from error
    listener = socket.socket(found[0], socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(found[4])
    except OSError as error:
        listener.close()
        raise _no_listener(host, port, error) from error
    return listener


def _no_listener(host: str, port: int, error: Exception) -> InvalidConfig:
    reason = getattr(error, "strerror", None) or error
    return InvalidConfig(f"cannot listen on {host} port {port}: {reason}", param="port", value=port)


def url_of(listener: socket.socket) -> str:
    """Where a listening socket can be reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
