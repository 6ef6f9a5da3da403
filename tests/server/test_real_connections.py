"""Over a real socket: streams that stream, break, are left, and are not read."""

import http.client
import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import httpx
import numpy as np
import pytest
from fake_engine import WAIT_SECONDS, FakeEngine, Gate, Step, sound

from declaim.contracts.errors import EngineFailed, InvalidConfig, Overloaded
from declaim.server.app import create_app
from declaim.server.connection import (
    BrokenOffLines,
    ReadersProtocol,
    SpeechServer,
    open_listener,
    url_of,
)
from declaim.server.delivery import BrokenOff
from declaim.server.settings import ServerSettings

Serve = Callable[..., AbstractContextManager[tuple[str, int]]]
Address = tuple[str, int]


class Impatient(ReadersProtocol):
    """Cuts readers that take nothing for a moment."""

    write_seconds = 0.05
    head_seconds = 0.4


def body(**fields: object) -> bytes:
    return json.dumps({"input": "Hello.", "response_format": "pcm", **fields}).encode()


@contextmanager
def posted(address: Address, **fields: object) -> Iterator[http.client.HTTPConnection]:
    """A connection on which a speech request was sent and nothing was read yet."""
    connection = http.client.HTTPConnection(*address, timeout=WAIT_SECONDS)
    try:
        headers = {"content-type": "application/json"}
        connection.request("POST", "/v1/audio/speech", body(**fields), headers)
        yield connection
    finally:
        connection.close()


def health(address: Address) -> int:
    return httpx.get(f"http://{address[0]}:{address[1]}/health/ready").status_code


@pytest.mark.parametrize(("name", "header"), [("pcm", 0), ("wav", 44)])
def test_the_first_chunk_comes_while_the_rest_is_made(serve: Serve, name: str, header: int) -> None:
    gate = Gate()
    chunks = sound(2)
    engine = FakeEngine(lambda request: [chunks[0], gate, chunks[1]])
    fields = {"response_format": name, "stream": True, "sample_rate": 44100}
    with serve(engine) as address, posted(address, **fields) as connection:
        answer = connection.getresponse()
        assert answer.status == 200
        assert answer.getheader("transfer-encoding") == "chunked"
        first = answer.read(header + 2 * 2048)
        assert len(first) == header + 2 * 2048
        assert gate.reached.wait(WAIT_SECONDS)
        gate.open()
        assert len(answer.read()) == 2 * 2048
        assert answer.getheader("server") is None


def test_every_chunk_holds_whole_samples(serve: Serve) -> None:
    """Each piece of the chunked body has an even length, at a rate that divides nothing."""
    engine = FakeEngine(lambda request: sound(9))
    with serve(engine) as address, socket.create_connection(address, WAIT_SECONDS) as peer:
        content = body(sample_rate=11027)
        head = f"POST /v1/audio/speech HTTP/1.1\r\nhost: a\r\ncontent-length: {len(content)}\r\n"
        peer.sendall(head.encode() + b"connection: close\r\n\r\n" + content)
        data = b"".join(iter(lambda: peer.recv(65536), b""))
    _headers, _, chunked = data.partition(b"\r\n\r\n")
    lengths = []
    while chunked:
        size, _, rest = chunked.partition(b"\r\n")
        lengths.append(int(size, 16))
        chunked = rest[lengths[-1] + 2 :]
    assert lengths[-1] == 0 and len(lengths) > 5
    assert all(length % 2 == 0 for length in lengths)


@pytest.mark.parametrize("name", ["pcm", "wav"])
def test_a_stream_that_fails_breaks_off(serve: Serve, name: str) -> None:
    """http.client and httpx both see that something is missing; the server lives on."""
    failure = EngineFailed("the stage failed")
    engine = FakeEngine(lambda request: [*sound(2), failure])
    with serve(engine) as address:
        with posted(address, response_format=name, stream=True) as connection:
            answer = connection.getresponse()
            assert answer.status == 200
            with pytest.raises(http.client.IncompleteRead):
                answer.read()
        url = f"http://{address[0]}:{address[1]}/v1/audio/speech"
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.post(url, content=body(response_format=name, stream=True))
        record = httpx.get(f"{url}/{engine.requests[0].id}").json()
        assert (record["status"], record["error"]["message"]) == ("failed", failure.message)
        assert health(address) == 200
    assert all(stream.closed.is_set() for stream in engine.streams)


def test_a_fault_of_ours_breaks_off_too(serve: Serve) -> None:
    engine = FakeEngine(lambda request: [*sound(1), KeyError("surprise")])
    with serve(engine) as address, posted(address) as connection:
        with pytest.raises(http.client.IncompleteRead):
            connection.getresponse().read()
        assert engine.streams[0].closed.wait(WAIT_SECONDS)


@pytest.mark.parametrize("chunks", [0, 1])
@pytest.mark.parametrize(("name", "stream"), [("pcm", True), ("wav", True), ("wav", False)])
def test_a_client_that_leaves_frees_its_slot(
    serve: Serve, chunks: int, name: str, stream: bool
) -> None:
    """Also while it waits for the first chunk, and while a whole body is made."""
    gate = Gate()
    engine = FakeEngine(lambda request: [*sound(chunks), gate, *sound(1)])
    with serve(engine) as address:
        with posted(address, response_format=name, stream=stream):
            assert gate.reached.wait(WAIT_SECONDS)
            assert not engine.streams[0].closed.is_set()
        assert engine.streams[0].closed.wait(WAIT_SECONDS)
        url = f"http://{address[0]}:{address[1]}/v1/audio/speech/{engine.requests[0].id}"
        record = httpx.get(url).json()
        assert (record["status"], record["finish_reason"]) == ("cancelled", "abort")


def test_a_running_request_can_be_asked_about(serve: Serve) -> None:
    gate = Gate()
    engine = FakeEngine(lambda request: [gate, *sound(1)])
    with serve(engine) as address, posted(address, seed=3) as connection:
        assert gate.reached.wait(WAIT_SECONDS)
        request_id = engine.requests[0].id
        url = f"http://{address[0]}:{address[1]}/v1/audio/speech/{request_id}"
        assert httpx.get(url).json() == {"id": request_id, "status": "running", "seed": 3}
        gate.open()
        assert connection.getresponse().status == 200


def test_a_reader_that_never_reads_is_cut(serve: Serve) -> None:
    """Far more sound than the buffers of both ends hold; the next client is served as ever."""
    endless: list[Step] = [np.zeros(2**19, dtype=np.float32)] * 40
    scripts: Iterator[list[Step]] = iter([endless, [*sound(1)]])
    engine = FakeEngine(lambda request: next(scripts))
    with serve(engine, protocol=Impatient) as address:
        with posted(address, sample_rate=44100):
            while not engine.streams:
                assert health(address) == 200
            assert engine.streams[0].closed.wait(WAIT_SECONDS)
        with posted(address, sample_rate=44100) as connection:
            assert len(connection.getresponse().read()) == 2 * 2048


def test_a_reader_that_falls_behind_gets_everything(serve: Serve) -> None:
    """More than the buffers hold: the server stops and goes on, and no cut stays pending."""
    resumed: list[bool] = []

    class Watched(ReadersProtocol):
        def resume_writing(self) -> None:
            super().resume_writing()
            resumed.append(self._patience is None)

    parts = [np.full(2**19, 0.5, dtype=np.float32)] * 20
    engine = FakeEngine(lambda request: parts)
    with (
        serve(engine, protocol=Watched) as address,
        posted(address, sample_rate=44100) as connection,
    ):
        answer = connection.getresponse()
        assert health(address) == 200
        data = answer.read()
        assert len(data) == 2 * 20 * 2**19
        assert set(np.frombuffer(data, dtype="<i2")) == {16384}
    assert resumed and all(resumed)


def test_a_body_that_never_comes(serve: Serve) -> None:
    engine = FakeEngine()
    settings = ServerSettings(body_seconds=0.05)
    with (
        serve(engine, settings=settings) as address,
        socket.create_connection(address, WAIT_SECONDS) as peer,
    ):
        peer.sendall(b"POST /v1/audio/speech HTTP/1.1\r\nhost: a\r\ncontent-length: 99\r\n\r\n{")
        assert peer.recv(65536).startswith(b"HTTP/1.1 400 ")
    assert engine.streams == []


def assert_cut(peer: socket.socket) -> None:
    """The server has closed the connection and said nothing."""
    try:
        assert peer.recv(1) == b""
    except ConnectionResetError:  # closed with bytes of ours unread
        pass


@pytest.mark.parametrize("sent", [b"", b"POST /v1/audio/speech HTTP/1.1\r\nhost:"])
def test_a_head_that_never_ends(serve: Serve, sent: bytes) -> None:
    """On a new connection and on one that was used; a request under way is not cut."""
    gate = Gate()
    engine = FakeEngine(lambda request: [gate, *sound(1)])
    with serve(engine, protocol=Impatient) as address:
        with socket.create_connection(address, WAIT_SECONDS) as peer:
            peer.sendall(sent)
            assert_cut(peer)
        with posted(address) as connection:
            assert gate.reached.wait(WAIT_SECONDS)
            with socket.create_connection(address, WAIT_SECONDS) as later:
                assert_cut(later)
            gate.open()
            assert connection.getresponse().status == 200
        if sent:
            with socket.create_connection(address, WAIT_SECONDS) as used:
                used.sendall(b"GET /health/live HTTP/1.1\r\nhost: a\r\n\r\n")
                answer = b""
                while not answer.endswith(b'{"live":true}'):
                    answer += used.recv(65536)
                used.sendall(sent)
                assert_cut(used)


def test_many_at_once(serve: Serve) -> None:
    """Eight requests run together, and each gets the sound of its own seed."""
    gate = Gate()

    engine = FakeEngine(lambda request: [gate, *sound(2, request.seed or 0)])
    answers: dict[int, bytes] = {}

    def ask(address: Address, seed: int) -> None:
        with posted(address, seed=seed, sample_rate=44100) as connection:
            answers[seed] = connection.getresponse().read()

    with serve(engine) as address:
        threads = [threading.Thread(target=ask, args=(address, seed)) for seed in range(8)]
        for thread in threads:
            thread.start()
        while len(engine.streams) < 8:
            assert health(address) == 200
        gate.open()
        for thread in threads:
            thread.join(WAIT_SECONDS)
    for seed in range(8):
        samples = np.frombuffer(answers[seed], dtype="<i2")
        assert np.abs(samples / 32767 - np.concatenate(sound(2, seed))).max() < 1 / 32767


def test_connections_are_kept(serve: Serve) -> None:
    """Two answers and an error between them on one connection."""
    with serve(FakeEngine()) as address:
        connection = http.client.HTTPConnection(*address, timeout=WAIT_SECONDS)
        headers = {"content-type": "application/json"}
        for content, status in ((body(), 200), (body(speed=2), 400), (body(), 200)):
            connection.request("POST", "/v1/audio/speech", content, headers)
            opened = connection.sock
            answer = connection.getresponse()
            assert answer.status == status
            assert answer.read()
            assert connection.sock is opened
        connection.close()


@pytest.mark.parametrize("chunks", [0, 1])
def test_the_end_of_the_server_breaks_streams_off(serve: Serve, chunks: int) -> None:
    """Before the first audio it is an overload that may be tried again; after, a broken stream."""
    gate = Gate()
    engine = FakeEngine(lambda request: [*sound(chunks), gate, *sound(1)])
    with serve(engine) as address:
        connection = http.client.HTTPConnection(*address, timeout=WAIT_SECONDS)
        connection.request("POST", "/v1/audio/speech", body(), {})
        assert gate.reached.wait(WAIT_SECONDS)
    assert engine.closed.is_set() and engine.streams[0].closed.is_set()
    answer = connection.getresponse()
    if chunks:
        with pytest.raises(http.client.IncompleteRead):
            answer.read()
    else:
        assert (answer.status, answer.getheader("retry-after")) == (503, "1")
        assert json.loads(answer.read())["error"]["code"] == "overloaded"
    connection.close()


def test_overload_recovers_by_itself(serve: Serve) -> None:
    engine = FakeEngine()
    with serve(engine) as address:
        for refusal, status in ((Overloaded("full"), 503), (None, 200)):
            engine.refusal = refusal
            with posted(address) as connection:
                assert connection.getresponse().status == status


def test_listeners() -> None:
    """A port in use is refused, and so are hosts and ports that cannot be."""
    with open_listener("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert url_of(listener) == f"http://127.0.0.1:{port}"
        listener.listen()
        with pytest.raises(InvalidConfig, match=f"127.0.0.1 port {port}"):
            open_listener("127.0.0.1", port)
    for host, port in (("192.0.2.1", 0), ("", 99999), ("127.0.0.1", -1), ("a" * 80, 80)):
        with pytest.raises(InvalidConfig):
            open_listener(host, port)


def test_broken_answers_are_one_line_in_the_log() -> None:
    def record(error: Exception) -> logging.LogRecord:
        info = (type(error), error, None)
        return logging.LogRecord("a", logging.ERROR, "b", 1, "Exception", (), info)

    broken, other = record(BrokenOff("the stage failed")), record(KeyError("a"))
    assert BrokenOffLines().filter(broken) and BrokenOffLines().filter(other)
    assert (broken.getMessage(), broken.exc_info) == (
        "an answer was broken off: the stage failed",
        None,
    )
    assert other.getMessage() == "Exception" and other.exc_info


def test_an_address_that_is_lost_before_it_listens_closes_the_engine() -> None:
    """Two sockets may take one address; only one can listen."""
    engine = FakeEngine()
    app = create_app(engine, ServerSettings(), lambda data: np.zeros(1, dtype=np.float32))
    server = SpeechServer(app, engine, lambda url: pytest.fail("it never listens"))
    with open_listener("127.0.0.1", 0) as first:
        with open_listener("127.0.0.1", first.getsockname()[1]) as second:
            first.listen()
            with pytest.raises(OSError):
                server.run([second])
    assert engine.closed.is_set()
