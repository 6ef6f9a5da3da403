"""The project's text speaks of the project alone."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TEXT_FOLDERS = (".ci", "docs", "scripts", "src", "tests", "training")
TEXT_SUFFIXES = frozenset(
    {"", ".cfg", ".css", ".html", ".js", ".json", ".md", ".py", ".toml", ".txt", ".yaml", ".yml"}
)
IGNORED = frozenset({"__pycache__"})

ELSEWHERE = re.compile(
    r"(?<![\w.])/(?:work|root|home|Users)\b(?!\.)"
    r"|\.\./(?:shared)"
    r"|pypi\.(?:org)|files\.(?:pythonhosted)"
    r"|\b(?:DESIGN|MODEL|STYLE|CASES|SERVER|NATIVE|NANO)\.(?:md)\b"
    r"|\b(?:TO)(?:DO)\b|\b(?:FIX)(?:ME)\b|\b(?:XX)(?:X)\b"
)
"""Machine paths, other documents, package hosts, and notes of what was left undone."""


def texts(root: Path) -> Iterator[Path]:
    """Every text file that belongs to the project, new ones included."""
    for folder in TEXT_FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and path.suffix in TEXT_SUFFIXES and not IGNORED & set(path.parts):
                yield path
    for path in sorted(root.iterdir()):
        if path.is_file() and path.suffix in TEXT_SUFFIXES and path.name != ".git":
            yield path


@pytest.mark.parametrize(
    "line",
    [
        "see /wo" + "rk/venv",
        'open("/ro' + 'ot/file")',
        "needs ../sha" + "red/x",
        "from py" + "pi.org",
        "# TO" + "DO: later",
        "as MO" + "DEL.md says",
    ],
)
def test_the_pattern_sees_what_it_is_for(line: str) -> None:
    assert ELSEWHERE.search(line)


@pytest.mark.parametrize("line", ["`src/root/home`", "the model.md of a todo list", "a/work"])
def test_the_pattern_passes_what_it_is_not_for(line: str) -> None:
    assert not ELSEWHERE.search(line)


def test_text_speaks_of_the_project_alone(root: Path) -> None:
    paths = list(texts(root))
    assert root / "README.md" in paths
    assert root / "docs" / "architecture.md" in paths
    found = [
        f"{path.relative_to(root)}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if ELSEWHERE.search(line)
    ]
    assert found == []
