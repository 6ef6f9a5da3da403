"""Who may import whom: the layers, torch, third parties and platform libraries."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

TORCH_FREE = (
    "declaim.audio",
    "declaim.bench.client",
    "declaim.bench.report",
    "declaim.config",
    "declaim.contracts",
    "declaim.scheduler",
    "declaim.server",
    "declaim.text",
)
"""What is tested in milliseconds, with everything below it; those that do not exist pass."""

ONLY_IN = {
    "rich": "declaim.cli",
    "typer": "declaim.cli",
    "torch_npu": "declaim.platforms",
    "triton": "declaim.platforms",
}
"""Third parties that one folder keeps to itself."""


IMPORTED_AS = {"PyYAML": "yaml"}
"""Packages whose modules have another name."""


def imported(tree: ast.Module) -> Iterator[str]:
    """Every dotted name that a module imports from, at any depth."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def inside(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def test_import_contracts(root: Path) -> None:
    status = lint_imports(config_filename=str(root / "pyproject.toml"), no_cache=True)
    assert status == EXIT_STATUS_SUCCESS


def test_torch_free_modules_do_not_load_torch(trees: Mapping[str, ast.Module], root: Path) -> None:
    names = [name for name in trees if any(inside(name, free) for free in TORCH_FREE)]
    assert "declaim.contracts.step" in names
    script = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    if 'torch' in sys.modules:\n"
        "        sys.exit(f'{name} loads torch')\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", script, "declaim", *names],
        env={"PYTHONPATH": str(root / "src")},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr


def test_the_torch_contract_lists_every_torch_free_package(
    trees: Mapping[str, ast.Module], root: Path
) -> None:
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    listed = {
        source
        for contract in contracts
        if contract.get("forbidden_modules") == ["torch"]
        for source in contract["source_modules"]
    }
    assert listed == {name for name in TORCH_FREE if name in trees}


def test_third_parties_are_declared_and_kept_where_they_belong(
    trees: Mapping[str, ast.Module], root: Path
) -> None:
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    packages = [entry.split(">")[0] for entry in settings["project"]["dependencies"]]
    declared = {IMPORTED_AS.get(package, package) for package in packages}
    known = declared | set(sys.stdlib_module_names) | {"declaim"} | set(ONLY_IN)
    for module, tree in trees.items():
        for name in imported(tree):
            first = name.partition(".")[0]
            assert first in known, f"{module} imports {name}, which pyproject does not declare"
            home = ONLY_IN.get(first, "declaim")
            assert inside(module, home), f"{module} imports {name}; only {home} may"
