"""Names: the public ones are a closed list, the others say what a module is."""

import ast
from collections.abc import Mapping
from pathlib import Path

import declaim

PUBLIC_NAMES = ["Engine", "Setup", "Speech", "__version__", "say"]
"""Everything that `from declaim import ...` promises."""

SAYS_NOTHING = frozenset({"base_utils", "common", "helper", "helpers", "manager", "misc", "utils"})


def test_public_names_are_a_closed_list() -> None:
    assert sorted(declaim.__all__) == PUBLIC_NAMES
    for name in PUBLIC_NAMES:
        assert getattr(declaim, name) is not None


def test_module_names_say_what_they_are(python_files: tuple[Path, ...]) -> None:
    for path in python_files:
        words = {path.stem, *path.stem.split("_"), path.parent.name}
        assert not words & SAYS_NOTHING, path


def test_every_module_says_what_it_is(trees: Mapping[str, ast.Module]) -> None:
    silent = [name for name, tree in trees.items() if not ast.get_docstring(tree)]
    assert silent == []


def test_test_files_have_names_of_their_own(root: Path) -> None:
    names = [path.name for path in (root / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
    assert list((root / "tests").rglob("__init__.py")) == []
