"""Small files that would decode to a great deal are refused before they take the memory."""

import io
import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest
from av.audio.stream import AudioStream
from numpy.typing import NDArray

from declaim.audio.mp4 import overstates

FloatArray = NDArray[np.float32]
Encode = Callable[..., bytes]

RATE = 22_050
ROOM = 150 << 20
"""Bytes that one refusal may take; each clip here would take ten times as much or more."""

READER = """
import json, re, sys
from pathlib import Path
from declaim.audio.read import ClipLimits, read_clip
from declaim.contracts.errors import DeclaimError

def peak():
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", status)[1])

content = sys.stdin.buffer.read()
before = peak()
try:
    read_clip(content, rate=44_100, limits=ClipLimits())
    name = ""
except DeclaimError as error:
    name = error.code
print(json.dumps({"error": name, "taken": peak() - before}))
"""


def error_within_room(content: bytes) -> str:
    """The code of the error that a clip meets in a process of its own; "" where it is read."""
    source = str(Path(__file__).parents[2] / "src")
    finished = subprocess.run(
        [sys.executable, "-c", READER],
        input=content,
        env={"PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        check=True,
    )
    answer = json.loads(finished.stdout)
    assert answer["taken"] < ROOM
    return str(answer["error"])


def silent_hours(hours: int) -> bytes:
    """A FLAC file of silence, about 450 kB an hour, whose header states no duration."""
    target = io.BytesIO()
    with av.open(target, "w", format="flac") as output:
        stream = output.add_stream("flac", rate=44_100, layout="mono")
        assert isinstance(stream, AudioStream)
        minute = np.zeros((1, 60 * 44_100), dtype=np.int16)
        for _ in range(60 * hours):
            frame = av.AudioFrame.from_ndarray(minute, "s16", "mono")
            frame.sample_rate = 44_100
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return target.getvalue()


def with_sizes(content: bytes, size: int, count: int) -> bytes:
    """An MP4 file whose one table of packet sizes states `count` packets of one size."""
    at = content.index(b"stsz") + 8
    return content[:at] + struct.pack(">II", size, count) + content[at + 8 :]


needs_proc = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="reads peak memory from /proc"
)


@needs_proc
def test_hours_of_silence_in_a_small_file() -> None:
    content = silent_hours(2)
    assert len(content) < 1 << 20
    assert error_within_room(content) == "too_large"


@needs_proc
def test_an_mp4_file_that_states_millions_of_packets(spoken: FloatArray, encode: Encode) -> None:
    content = encode(spoken[None], container="ipod", codec="aac", rate=44_100)
    assert error_within_room(content) == ""
    many = with_sizes(content, 10, 80_000_000)
    at = many.index(b"stsc") + 8
    many = many[:at] + struct.pack(">IIII", 1, 1, 80_000_000, 1) + many[at + 16 :]
    assert error_within_room(many) == "invalid_request"


@needs_proc
def test_a_fragment_that_states_millions_of_packets(spoken: FloatArray, encode: Encode) -> None:
    content = encode(
        spoken[None],
        container="mp4",
        codec="aac",
        rate=44_100,
        options={"movflags": "frag_keyframe+empty_moov+default_base_moof"},
    )
    assert error_within_room(content) == ""
    at = content.index(b"trun") + 4
    many = content[:at] + struct.pack(">II", 1, 50_000_000) + content[at + 8 :]
    assert error_within_room(many) == "invalid_request"


def test_honest_tables_are_believed(spoken: FloatArray, encode: Encode) -> None:
    for container, codec in (("ipod", "aac"), ("mp4", "alac"), ("mov", "pcm_s16le")):
        content = encode(spoken[None], container=container, codec=codec)
        assert not overstates(content)
        room = len(content)
        assert not overstates(with_sizes(content, 2, room // 2))
        assert overstates(with_sizes(content, 2, room // 2 + 1))


def test_every_way_to_overstate_is_seen() -> None:
    room = bytes(1000)
    table = b"stsz" + bytes(4) + struct.pack(">II", 1, 2000)
    assert overstates(struct.pack(">I", 20) + table + room)
    assert overstates(struct.pack(">I", 0) + table + room)
    wide = b"stsz" + struct.pack(">Q", 28) + bytes(4) + struct.pack(">II", 1, 2000)
    assert overstates(struct.pack(">I", 1) + wide + room)
    fragment = struct.pack(">I", 16) + b"trun" + bytes(4) + struct.pack(">I", 700)
    assert not overstates(fragment + room)
    assert overstates(2 * fragment + room)
    assert overstates(struct.pack(">I", 900) + b"cmov" + room)
    assert not overstates(struct.pack(">I", 1 << 30) + table + room)
    assert not overstates(b"stsz")
