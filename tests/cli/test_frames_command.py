"""`declaim frames`: its files, its steps file and its errors, as a user meets them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from declaim.cli.main import run
from declaim.config.checkpoint import load_model_config
from declaim.text.tokenizer import load_tokenizer


@pytest.fixture
def micro(checkpoint: Callable[[str], Path]) -> Path:
    return checkpoint("micro")


@pytest.fixture
def rows_file(tmp_path: Path) -> Callable[[str, int, int], Path]:
    """A file of random text rows: name, rows, seed."""

    def get(name: str, rows: int, seed: int) -> Path:
        array = np.zeros((rows, 5), dtype=np.int64)
        array[:, 0] = np.random.default_rng(seed).integers(0, 256, rows)
        path = tmp_path / f"{name}.npy"
        np.save(path, array)
        return path

    return get


def arguments(micro: Path, rows: list[Path], *more: object) -> list[str]:
    """A command line with one output for each rows file, beside it."""
    line = ["frames", "--model", str(micro)]
    for path in rows:
        line += ["--rows", str(path), "-o", str(path.with_suffix(".out.npy"))]
    return line + [str(item) for item in more]


def read_steps(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_output_shapes_and_codes(
    micro: Path, rows_file: Callable[..., Path], tmp_path: Path
) -> None:
    path = rows_file("a", 12, 0)
    codes = tmp_path / "codes.npy"
    line = arguments(micro, [path], "--seed", 7, "--max-frames", 9, "--codes", codes)
    assert run(line) == 0
    frames = np.load(path.with_suffix(".out.npy"))
    assert frames.dtype == np.int64 and frames.shape[1] == 5 and 1 <= len(frames) <= 9
    assert (frames[:, 0] - 320 == frames[:, 1]).all()
    assert np.array_equal(np.load(codes), frames[:, 1:].T)


def test_concurrent_requests_equal_lone_ones(micro: Path, rows_file: Callable[..., Path]) -> None:
    """Request i draws with seed + i, whatever runs beside it."""
    paths = [rows_file(str(index), 5 + 9 * index, index) for index in range(3)]
    assert run(arguments(micro, paths, "--seed", 40, "--max-frames", 12)) == 0
    together = [np.load(path.with_suffix(".out.npy")) for path in paths]
    for index, path in enumerate(paths):
        line = arguments(micro, [path], "--seed", 40 + index, "--max-frames", 12)
        assert run([*line, "--max-batched-rows", "3", "--max-num-seqs", "1"]) == 0
        assert np.array_equal(np.load(path.with_suffix(".out.npy")), together[index])


def test_steps_file(micro: Path, rows_file: Callable[..., Path], tmp_path: Path) -> None:
    """Within the budget, mixed steps occur, and requests share their steps."""
    paths = [rows_file(str(index), 31, index) for index in range(8)]
    steps = tmp_path / "steps.jsonl"
    options = ["--seed", 1, "--max-frames", 40, "--max-batched-rows", 60, "--steps", steps]
    assert run(arguments(micro, paths, *options)) == 0
    lines = read_steps(steps)
    assert [line["step"] for line in lines] == list(range(len(lines)))
    keys = ["step", "kind", "rows", "prefill_rows", "sampled_rows", "spans", "pages_in_use"]
    assert all(list(line) == keys for line in lines)
    assert max(line["rows"] for line in lines) <= 60
    assert sum(line["prefill_rows"] for line in lines) == 8 * 31
    assert {line["kind"] for line in lines} == {"prefill", "mixed", "decode"}
    for line in lines:
        assert line["rows"] == sum(rows for _, _, rows in line["spans"])
        decode_rows = line["rows"] - line["prefill_rows"]
        expected = "mixed" if line["prefill_rows"] and decode_rows else "prefill"
        assert line["kind"] == (expected if line["prefill_rows"] else "decode")
        assert len({slot for _, slot, _ in line["spans"]}) == len(line["spans"]) <= 8
        assert line["pages_in_use"] >= len(line["spans"])
    last_prompt = max(line["step"] for line in lines if line["prefill_rows"])
    assert len(lines) - last_prompt <= 60
    for index, path in enumerate(paths):
        frames = len(np.load(path.with_suffix(".out.npy")))
        sampled = sum(str(index) in [name for name, _, _ in line["spans"]] for line in lines)
        assert sampled >= frames
    assert sum(line["sampled_rows"] for line in lines) < 8 * 41


def test_greedy_ignores_the_seed(micro: Path, rows_file: Callable[..., Path]) -> None:
    path = rows_file("a", 12, 0)
    made = []
    for seed in (1, 2):
        assert run(arguments(micro, [path], "--greedy", "--seed", seed, "--max-frames", 8)) == 0
        made.append(np.load(path.with_suffix(".out.npy")))
    assert np.array_equal(*made)


def test_unseeded_runs_differ_and_report_their_seeds(
    micro: Path, rows_file: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = rows_file("a", 12, 0)
    made = []
    for _ in range(6):  # several: a run may well end before its first frame
        assert run(arguments(micro, [path], "--max-frames", 12)) == 0
        made.append((np.load(path.with_suffix(".out.npy")), capsys.readouterr().err))
    assert len({frames.tobytes() for frames, _ in made}) > 2
    name, index, seed = made[0][1].split()
    assert (name, index) == ("seed", "0")
    assert run(arguments(micro, [path], "--max-frames", 12, "--seed", seed)) == 0
    assert np.array_equal(np.load(path.with_suffix(".out.npy")), made[0][0])


def test_preempted_requests_give_the_same_files(
    micro: Path, rows_file: Callable[..., Path], tmp_path: Path
) -> None:
    paths = [rows_file(str(index), 31, index) for index in range(3)]
    steps = tmp_path / "steps.jsonl"
    made = []
    for more in ([], ["--preempt-every", 2, "--steps", steps]):
        assert run(arguments(micro, paths, "--seed", 3, "--max-frames", 9, *more)) == 0
        made.append([np.load(path.with_suffix(".out.npy")).tobytes() for path in paths])
    assert made[0] == made[1]
    assert sum(line["prefill_rows"] for line in read_steps(steps)) > 3 * 3 * 31


@pytest.mark.parametrize("given", [[], ["--prefix-rows", 20, "--prefix-rows", 20]])
def test_a_prefix_in_common_is_computed_once_and_the_files_are_the_same(
    micro: Path, tmp_path: Path, given: list[object]
) -> None:
    """Its end is found by the opening of the user turn, or given."""
    config = load_model_config(micro)
    opening = load_tokenizer(micro, config).encode("<|im_start|>user\n")
    paths = []
    for index in range(2):
        rows = np.zeros((40, 5), dtype=np.int64)
        rows[:, 0] = 65
        rows[20 - len(opening) : 20, 0] = opening
        rows[20:, 0] = 70 + index
        paths.append(tmp_path / f"{index}.npy")
        np.save(paths[-1], rows)
    steps = tmp_path / "steps.jsonl"
    made, computed = [], []
    for switch in ("on", "off"):
        more = ["--max-num-seqs", 1, "--prefix-cache", switch, "--steps", steps, *given]
        assert run(arguments(micro, paths, "--seed", 3, "--max-frames", 9, *more)) == 0
        made.append([np.load(path.with_suffix(".out.npy")).tobytes() for path in paths])
        computed.append(sum(line["prefill_rows"] for line in read_steps(steps)))
    assert made[0] == made[1]
    assert computed == [60, 80]


def test_a_prefix_before_a_semantic_row_is_refused(
    micro: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = np.zeros((10, 5), dtype=np.int64)
    rows[4, 0] = 320
    np.save(tmp_path / "a.npy", rows)
    for prefix, named in (("4", "320 is semantic"), ("0", "[1, 9]"), ("10", "[1, 9]")):
        line = arguments(micro, [tmp_path / "a.npy"], "--prefix-rows", prefix)
        assert run(line) == 2
        assert named in capsys.readouterr().err
    assert run(arguments(micro, [tmp_path / "a.npy"], "--prefix-rows", 5, "--seed", 0)) == 0


def test_no_frame_before_the_end_gives_an_empty_array(
    micro: Path, rows_file: Callable[..., Path]
) -> None:
    """A seed whose first draw is the end frame."""
    path = rows_file("a", 12, 0)
    for seed in range(400):
        assert run(arguments(micro, [path], "--max-frames", 1, "--seed", seed)) == 0
        frames = np.load(path.with_suffix(".out.npy"))
        if not len(frames):
            assert frames.shape == (0, 5) and frames.dtype == np.int64
            return
    pytest.fail("no seed ended at once")


BAD = {
    "counts differ": (["--rows", "{rows}", "-o", "a.npy", "-o", "b.npy"], "-o", 2),
    "codes counts differ": (
        ["--rows", "{rows}", "-o", "a.npy", "--codes", "a", "--codes", "b"],
        "--codes",
        2,
    ),
    "no such rows": (["--rows", "absent.npy", "-o", "a.npy"], "absent.npy", 2),
    "max frames": (["--rows", "{rows}", "-o", "a.npy", "--max-frames", "2049"], "2048", 2),
    "seed": (["--rows", "{rows}", "-o", "a.npy", "--seed", "-1"], "seed", 2),
    "temperature": (["--rows", "{rows}", "-o", "a.npy", "--temperature", "2.5"], "2.5", 2),
    "greedy and temperature": (
        ["--rows", "{rows}", "-o", "a.npy", "--greedy", "--temperature", "1"],
        "--greedy",
        2,
    ),
    "top_p": (["--rows", "{rows}", "-o", "a.npy", "--top-p", "0"], "top_p", 2),
    "top_k": (["--rows", "{rows}", "-o", "a.npy", "--top-k", "0"], "top_k", 2),
    "batched rows": (
        ["--rows", "{rows}", "-o", "a.npy", "--max-batched-rows", "0"],
        "--max-batched-rows",
        2,
    ),
    "preempt every": (["--rows", "{rows}", "-o", "a.npy", "--preempt-every", "0"], "not 0", 3),
    "prefix cache": (["--rows", "{rows}", "-o", "a.npy", "--prefix-cache", "yes"], "yes", 2),
    "unknown option": (["--rows", "{rows}", "-o", "a.npy", "--max-frame", "1"], "--max-frame", 2),
    "not a number": (["--rows", "{rows}", "-o", "a.npy", "--top-k", "x"], "--top-k", 2),
}


@pytest.mark.parametrize("case", BAD)
def test_errors(
    micro: Path, rows_file: Callable[..., Path], capsys: pytest.CaptureFixture[str], case: str
) -> None:
    options, named, code = BAD[case]
    rows = str(rows_file("a", 12, 0))
    line = ["frames", "--model", str(micro), *(item.format(rows=rows) for item in options)]
    assert run(line) == code
    error = capsys.readouterr().err
    assert named in error and "Traceback" not in error


def test_rows_that_are_not_rows(
    micro: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases: dict[str, Any] = {
        "floats": np.zeros((3, 5)),
        "one dimension": np.zeros(5, dtype=np.int64),
        "wrong width": np.zeros((3, 4), dtype=np.int64),
        "no rows": np.zeros((0, 5), dtype=np.int64),
        "too large": np.full((3, 5), 2**40),
    }
    for name, array in cases.items():
        np.save(tmp_path / "rows.npy", array)
        line = arguments(micro, [tmp_path / "rows.npy"], "--seed", 0)
        assert run(line) == 2, name
        assert "Traceback" not in capsys.readouterr().err
    (tmp_path / "rows.npy").write_bytes(b"\x93NUMPY but no more")
    assert run(arguments(micro, [tmp_path / "rows.npy"])) == 2


def test_a_model_that_is_not_there(
    rows_file: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = arguments(tmp_path / "absent", [rows_file("a", 12, 0)])
    assert run(line) == 2
    assert "absent" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert run(arguments(tmp_path / "empty", [rows_file("a", 12, 0)])) == 3


@pytest.mark.parametrize("mode", ["none", "piecewise", "full", "full_and_piecewise"])
def test_graph_modes_give_the_same_frames(
    micro: Path, rows_file: Callable[..., Path], mode: str
) -> None:
    """Two requests at once, in chunks, against the default mode."""
    paths = [rows_file("a", 40, 1), rows_file("b", 3, 2)]
    more = ["--seed", 5, "--max-frames", 6, "--max-batched-rows", 16]

    def made(*options: object) -> list[list[int]]:
        assert run(arguments(micro, paths, *more, *options)) == 0
        return [np.load(path.with_suffix(".out.npy")).tolist() for path in paths]

    assert made("--graph-mode", mode) == made()


def test_an_unknown_graph_mode_is_refused(
    micro: Path, rows_file: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    line = arguments(micro, [rows_file("a", 4, 1)], "--graph-mode", "half")
    assert run(line) == 2
    assert "full_and_piecewise" in capsys.readouterr().err
