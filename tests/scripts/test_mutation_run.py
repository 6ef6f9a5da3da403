"""Planting faults: each place stands once, each named test is there, and verdicts are right."""

import re
from pathlib import Path

import pytest

from mutants.mutation import Mutation, PlaceError
from mutants.run import BrokenTests, chosen, copied, judge, judge_all, table
from mutation_list import MUTATIONS

ROOT = Path(__file__).parents[2]


def test_every_place_stands_exactly_once() -> None:
    for mutation in MUTATIONS:
        planted = mutation.planted(ROOT / "src" / "declaim")
        compile(planted, mutation.file, "exec")
        assert mutation.old != mutation.new and not mutation.new.startswith(mutation.old * 2)


def test_every_named_test_is_there() -> None:
    for test in {test for mutation in MUTATIONS for test in mutation.tests}:
        file, _, name = test.partition("::")
        text = (ROOT / "tests" / file).read_text(encoding="utf-8")
        if name:
            assert re.search(rf"^def {re.escape(name.partition('[')[0])}\(", text, re.M), test


def test_faults_have_names_of_their_own_and_tests() -> None:
    names = [mutation.name for mutation in MUTATIONS]
    assert len(set(names)) == len(names) >= 25
    assert all(mutation.tests for mutation in MUTATIONS)


def test_choice() -> None:
    short = chosen(MUTATIONS, short=True, only=None)
    assert [mutation.kind for mutation in short] == [*dict.fromkeys(m.kind for m in MUTATIONS)]
    for mutation in short:
        assert mutation is next(one for one in MUTATIONS if one.kind == mutation.kind)
    assert chosen(MUTATIONS, short=False, only=None) == list(MUTATIONS)
    assert chosen(MUTATIONS, short=False, only=MUTATIONS[3].name) == [MUTATIONS[3]]
    assert chosen(MUTATIONS, short=False, only="no such fault") == []


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of one module and two tests, one of which looks at what it does."""
    root = tmp_path / "project"
    (root / "src" / "declaim").mkdir(parents=True)
    (root / "tests").mkdir()
    (root / ".git").mkdir()
    (root / "src" / "declaim" / "__init__.py").write_text("")
    (root / "src" / "declaim" / "sums.py").write_text("def add(a, b):\n    return a + b\n")
    head = "from declaim.sums import add\n\n\n"
    (root / "tests" / "test_sums.py").write_text(
        f"{head}def test_strong():\n    assert add(2, 2) == 4\n\n\n"
        "def test_weak():\n    assert add(0, 0) == 0\n\n\n"
        "def test_wrong():\n    assert add(2, 2) == 5\n"
    )
    return root


def fault(new: str, test: str, *, old: str = "a + b") -> Mutation:
    return Mutation("sums", f"{old} becomes {new}", "sums.py", old, new, (f"test_sums.py::{test}",))


def test_noticed_and_survived(project: Path) -> None:
    """A fault in one copy at a time; the project itself stays as it is."""
    source = project / "src" / "declaim" / "sums.py"
    before = source.read_text()
    shown: list[bool] = []
    verdicts = judge_all(
        project,
        [fault("a - b", "test_strong"), fault("a - b", "test_weak"), fault("a", "test_strong")],
        lambda verdict: shown.append(verdict.noticed),
    )
    assert [verdict.noticed for verdict in verdicts] == shown == [True, False, True]
    assert [verdict.how for verdict in verdicts] == ["failed", "passed", "failed"]
    assert source.read_text() == before
    lines = table(verdicts).splitlines()
    assert len(lines) == 5
    assert lines[2].endswith("| noticed |") and lines[3].endswith("| **SURVIVES** |")


def test_a_hang_is_noticed_and_taken_out_again(project: Path) -> None:
    with copied(project) as copy:
        assert not (copy / ".git").exists()
        endless = fault("[0 for _ in iter(int, 1)]", "test_strong")
        verdict = judge(copy, endless, limit=3.0)
        assert (verdict.noticed, verdict.how) == (True, "hung")
        assert (copy / "src" / "declaim" / "sums.py").read_text() == (
            project / "src" / "declaim" / "sums.py"
        ).read_text()


@pytest.mark.parametrize("old", ["a * b", "a"])
def test_a_place_that_is_not_there_once(project: Path, old: str) -> None:
    with pytest.raises(PlaceError, match="not once"):
        judge_all(project, [fault("b", "test_strong", old=old)], lambda verdict: None)


def test_tests_that_prove_nothing(project: Path) -> None:
    """Failing without a fault, or not there at all."""
    for test in ("test_wrong", "test_absent"):
        with pytest.raises(BrokenTests, match="without any fault"):
            judge_all(project, [fault("a - b", test)], lambda verdict: None)
    with copied(project) as copy, pytest.raises(BrokenTests, match="pytest ends with"):
        judge(copy, fault("a - b", "test_absent"))
