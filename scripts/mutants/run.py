"""Plants one fault at a time in a copy of the project and runs the tests that must notice it.

A fault is noticed when a named test fails or runs past the time limit. Tests that cannot even be
collected prove nothing and are an error, as are tests that fail without any fault.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mutants.mutation import Mutation

TIME_LIMIT = 120.0
"""Seconds of one fault's tests; unharmed ones take a few."""

LEFT_BEHIND = shutil.ignore_patterns(
    ".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "dist", "*.egg-info"
)
TESTS_FAILED = 1
"""pytest's exit status when tests ran and at least one failed."""


class BrokenTests(Exception):
    """The named tests do not run, or fail without any fault."""


@dataclass(frozen=True)
class Verdict:
    """What became of a fault; how: `failed` or `hung` where it was noticed."""

    mutation: Mutation
    noticed: bool
    how: str
    seconds: float


@contextmanager
def copied(root: Path) -> Iterator[Path]:
    """A temporary copy of the project."""
    with tempfile.TemporaryDirectory(prefix="declaim-mutations-") as folder:
        copy = Path(folder) / "project"
        shutil.copytree(root, copy, ignore=LEFT_BEHIND, symlinks=True)
        yield copy


def run_tests(copy: Path, tests: Iterable[str], limit: float) -> tuple[int | None, str]:
    """pytest's exit status, None past the limit, and what it printed."""
    environment = os.environ | {
        "OMP_WAIT_POLICY": "passive",
        "PYTHONPATH": str(copy / "src"),
        "PYTHONHASHSEED": "0",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    try:
        done = subprocess.run(
            [*command, *(f"tests/{test}" for test in tests)],
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, done.stdout + done.stderr


def check_unharmed(copy: Path, mutations: Sequence[Mutation]) -> None:
    """Raise BrokenTests unless every named test passes without any fault."""
    tests = dict.fromkeys(test for mutation in mutations for test in mutation.tests)
    status, output = run_tests(copy, tests, TIME_LIMIT * 5)
    if status != 0:
        raise BrokenTests(f"without any fault the tests end with {status}:\n{output[-4000:]}")


def judge(copy: Path, mutation: Mutation, limit: float = TIME_LIMIT) -> Verdict:
    """Plant a fault, run its tests, and take it out again."""
    package = copy / "src" / "declaim"
    path = package / mutation.file
    before, harmed = path.read_text(encoding="utf-8"), mutation.planted(package)
    start = time.monotonic()
    try:
        _write(path, harmed)
        status, output = run_tests(copy, mutation.tests, limit)
    finally:
        _write(path, before)
    seconds = time.monotonic() - start
    if status not in (None, 0, TESTS_FAILED):
        raise BrokenTests(f"{mutation.name}: pytest ends with {status}:\n{output[-4000:]}")
    how = {None: "hung", 0: "passed"}.get(status, "failed")
    return Verdict(mutation, status != 0, how, seconds)


def _write(path: Path, text: str) -> None:
    """Write a source file and forget what it was compiled to."""
    path.write_text(text, encoding="utf-8")
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def judge_all(
    root: Path, mutations: Sequence[Mutation], on_verdict: Callable[[Verdict], None]
) -> list[Verdict]:
    """Every fault in turn, in one copy; raises PlaceError before anything runs."""
    for mutation in mutations:
        mutation.planted(root / "src" / "declaim")
    verdicts = []
    with copied(root) as copy:
        check_unharmed(copy, mutations)
        for mutation in mutations:
            verdicts.append(judge(copy, mutation))
            on_verdict(verdicts[-1])
    return verdicts


def chosen(mutations: Sequence[Mutation], *, short: bool, only: str | None) -> list[Mutation]:
    """All, the first of every kind (short), or those whose name holds `only`."""
    if only is not None:
        return [mutation for mutation in mutations if only in mutation.name]
    if short:
        return list({mutation.kind: mutation for mutation in reversed(mutations)}.values())[::-1]
    return list(mutations)


def table(verdicts: Sequence[Verdict]) -> str:
    """Verdicts as a Markdown table."""
    lines = ["| kind | planted fault | file | tests | result |", "|---|---|---|---|---|"]
    for verdict in verdicts:
        mutation = verdict.mutation
        result = "noticed" if verdict.noticed else "**SURVIVES**"
        if verdict.how == "hung":
            result += ", by a hang"
        tests = "<br>".join(f"`{test}`" for test in mutation.tests)
        cells = (mutation.kind, mutation.name, f"`{mutation.file}`", tests, result)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
