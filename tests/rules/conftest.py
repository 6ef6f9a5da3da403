"""The package's own source as syntax trees, for the tests that hold its rules.

Nothing here imports declaim: a rule is read off the text, so that a broken module still fails it.
"""

import ast
from collections.abc import Mapping
from pathlib import Path

import pytest

Trees = Mapping[str, ast.Module]


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder of the whole project."""
    return Path(__file__).parents[2]


@pytest.fixture(scope="session")
def package(root: Path) -> Path:
    """The folder of the package."""
    return root / "src" / "declaim"


@pytest.fixture(scope="session")
def trees(package: Path) -> Trees:
    """Every module of the package by its dotted name; a package has its folder's name."""
    found: dict[str, ast.Module] = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    return found


@pytest.fixture(scope="session")
def python_files(root: Path) -> tuple[Path, ...]:
    """Every Python file of the project, tests included."""
    folders = ("src", "tests", "scripts", "training")
    return tuple(path for name in folders for path in sorted((root / name).rglob("*.py")))
