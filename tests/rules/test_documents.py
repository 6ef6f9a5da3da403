"""What the documents say of the tree, the errors and the dependencies is true."""

import re
import tomllib
from pathlib import Path

from declaim.contracts.errors import ERROR_TABLE, EXIT_DIFFERENCE


def table_rows(text: str, heading: str) -> list[list[str]]:
    """Cells of the first Markdown table under a heading, without its two header lines."""
    section = text.split(f"\n{heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_map_of_files_is_the_tree(root: Path, package: Path) -> None:
    """Both ways: every module stands in the map, and everything in the map stands in the tree."""
    text = (root / "docs" / "architecture.md").read_text(encoding="utf-8")
    mapped = set()
    for folder_cell, _owns, files_cell in table_rows(text, "## Layout"):
        (folder,) = re.findall(r"`([\w/.]+)`", folder_cell)
        for name in re.findall(r"`([\w/.]+)`", files_cell):
            mapped.add(f"{folder}/{name}.py" if folder != "declaim" else f"{name}.py")
        if folder != "declaim":
            mapped.add(f"{folder}/__init__.py")
    tree = {str(path.relative_to(package)) for path in package.rglob("*.py")}
    inner = {name for name in tree if name.endswith("__init__.py") and name.count("/") > 1}
    assert mapped == tree - inner


def test_exit_codes_are_documented(root: Path) -> None:
    text = (root / "docs" / "cli.md").read_text(encoding="utf-8")
    documented = {
        (code, name)
        for code_cell, names, _meaning in table_rows(text, "## Exit codes")
        for code in re.findall(r"\d+", code_cell)
        for name in re.findall(r"`(\w+)`", names)
    }
    errors = {(str(row.exit_code), row.error.__name__) for row in ERROR_TABLE}
    assert documented == errors
    assert f"| {EXIT_DIFFERENCE} |" in text


def requirement_names(entries: list[str]) -> list[str]:
    return [re.split(r"[<>=!~;\[ ]", entry, maxsplit=1)[0] for entry in entries]


def test_dependencies_are_explained_and_pinned(root: Path) -> None:
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    project = settings["project"]
    runtime = requirement_names(project["dependencies"])
    extras = requirement_names(
        [entry for group in project["optional-dependencies"].values() for entry in group]
    )
    build = requirement_names(settings["build-system"]["requires"])

    decisions = (root / "docs" / "decisions.md").read_text(encoding="utf-8")
    explained = {
        cells[0].strip("`"): cells[1] for cells in table_rows(decisions, "## Dependencies")
    }
    assert set(explained) == {*runtime, *extras, *build}
    assert all(len(reason.split()) >= 4 for reason in explained.values())

    lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert set(explained) <= set(pinned)
    assert all(re.fullmatch(r"[\w.+]+", version) for version in pinned.values())
