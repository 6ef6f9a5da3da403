"""An application over a fake engine, asked without a socket and through a real one."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np
import pytest
from fake_engine import WAIT_SECONDS, FakeEngine

from declaim.contracts.engine import SpeechEngine
from declaim.contracts.errors import InvalidRequest
from declaim.contracts.request import FloatArray
from declaim.server.app import create_app
from declaim.server.connection import ReadersProtocol, SpeechServer, open_listener
from declaim.server.settings import ServerSettings

Ask = Callable[..., httpx.Response]


def decode(data: bytes) -> FloatArray:
    """Bytes as samples; those that begin with `bad` are no clip."""
    if data.startswith(b"bad"):
        raise InvalidRequest("file: this is no audio", param="file")
    samples: FloatArray = np.frombuffer(data, dtype=np.uint8).astype(np.float32)
    samples /= 256
    return samples


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def ask() -> Ask:
    """Ask the application directly: ask(engine, method, path, settings=..., **httpx options)."""

    def get(
        engine: FakeEngine,
        method: str,
        path: str,
        *,
        settings: ServerSettings | None = None,
        **options: Any,
    ) -> httpx.Response:
        app = create_app(engine, settings or ServerSettings(), decode)
        return asyncio.run(_ask(app, method, path, options))

    return get


async def _ask(app: Any, method: str, path: str, options: dict[str, Any]) -> httpx.Response:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        return await client.request(method, path, **options)


@pytest.fixture
def converse() -> Callable[..., list[httpx.Response]]:
    """Several requests to one application, in order: (method, path, options), or what gives it."""

    def get(
        engine: FakeEngine, steps: list[Any], *, settings: ServerSettings | None = None
    ) -> list[httpx.Response]:
        app = create_app(engine, settings or ServerSettings(), decode)
        answers = []
        for step in steps:
            method, path, options = step() if callable(step) else step
            answers.append(asyncio.run(_ask(app, method, path, options)))
        return answers

    return get


@pytest.fixture
def speak(ask: Ask) -> Ask:
    """POST a speech request of these fields over a good default; None leaves a field out."""

    def get(engine: FakeEngine, **fields: Any) -> httpx.Response:
        settings = fields.pop("settings", None)
        body = {"input": "Hello there.", "response_format": "pcm", **fields}
        content = json.dumps({name: value for name, value in body.items() if value is not None})
        headers = {"content-type": "application/json"}
        return ask(
            engine,
            "POST",
            "/v1/audio/speech",
            content=content.encode(),
            headers=headers,
            settings=settings,
        )

    return get


@pytest.fixture
def serve() -> Callable[..., Any]:
    """A real server on a free port while the context lasts; gives its host and port."""

    @contextmanager
    def running(
        engine: SpeechEngine,
        *,
        protocol: type[ReadersProtocol] = ReadersProtocol,
        settings: ServerSettings | None = None,
    ) -> Iterator[tuple[str, int]]:
        started = threading.Event()
        app = create_app(engine, settings or ServerSettings(), decode)
        server = SpeechServer(app, engine, lambda url: started.set(), protocol=protocol)
        listener = open_listener("127.0.0.1", 0)
        host, port = listener.getsockname()
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            assert started.wait(WAIT_SECONDS)
            yield host, port
        finally:
            server.should_exit = True
            thread.join(WAIT_SECONDS)
            assert not thread.is_alive()

    return running
