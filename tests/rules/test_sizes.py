"""Files, functions and classes stay small enough to be read in one go."""

import ast
from collections.abc import Mapping
from pathlib import Path

FILE_LINES = 400
FUNCTION_LINES = 60
INSTANCE_ATTRIBUTES = 16
PUBLIC_METHODS = 12

MANY_METHODS = {
    "declaim.config.section.Section": "one method a kind of value that a key may have",
    "declaim.ops.table.OpTable": "one method an op: the contract is one list",
    "declaim.ops.reference.ReferenceOps": "one method an op, as the contract says",
}
MANY_ATTRIBUTES = {
    "declaim.server.body.SpeechBody": "one field a field of a speech request",
    "declaim.nano.shapes.Shape": "one field a size in which the shapes differ",
    "declaim.config.schema.FrameStage": "one field a key of the deploy file",
    "declaim.config.model.BackboneConfig": "one field a published key of text_config",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def classes(trees: Mapping[str, ast.Module]) -> dict[str, ast.ClassDef]:
    """Every class of the package by its dotted name."""
    return {
        f"{module}.{node.name}": node
        for module, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }


def methods(node: ast.ClassDef) -> list[Function]:
    return [item for item in node.body if isinstance(item, Function)]


def instance_attributes(node: ast.ClassDef) -> set[str]:
    """Annotated fields of the class body, but class variables, and what methods set on self."""
    names = {
        item.target.id
        for item in node.body
        if isinstance(item, ast.AnnAssign)
        and isinstance(item.target, ast.Name)
        and "ClassVar" not in ast.unparse(item.annotation)
    }
    for method in methods(node):
        for item in ast.walk(method):
            if (
                isinstance(item, ast.Attribute)
                and isinstance(item.ctx, ast.Store)
                and isinstance(item.value, ast.Name)
                and item.value.id == "self"
            ):
                names.add(item.attr)
    return names


def test_files(python_files: tuple[Path, ...], root: Path) -> None:
    lengths = {
        str(path.relative_to(root)): len(path.read_text(encoding="utf-8").splitlines())
        for path in python_files
    }
    assert {name: length for name, length in lengths.items() if length > FILE_LINES} == {}


def test_functions(python_files: tuple[Path, ...], root: Path) -> None:
    long = {}
    for path in python_files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, Function):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    long[f"{path.relative_to(root)}:{node.name}"] = lines
    assert long == {}


def test_instance_attributes(trees: Mapping[str, ast.Module]) -> None:
    counts = {name: len(instance_attributes(node)) for name, node in classes(trees).items()}
    over = {name for name, count in counts.items() if count > INSTANCE_ATTRIBUTES}
    assert over == set(MANY_ATTRIBUTES)


def test_public_methods(trees: Mapping[str, ast.Module]) -> None:
    counts = {
        name: sum(not method.name.startswith("_") for method in methods(node))
        for name, node in classes(trees).items()
    }
    over = {name for name, count in counts.items() if count > PUBLIC_METHODS}
    assert over == set(MANY_METHODS)
