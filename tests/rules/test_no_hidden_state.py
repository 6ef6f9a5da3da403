"""No hidden state: nothing mutable in a module or a class body, no patch, one environment reader.

Each rule is a function from a module's tree to what breaks it, tried on examples first.
"""

import ast
from collections.abc import Callable, Iterator, Mapping

import pytest

Rule = Callable[[ast.Module], Iterator[str]]

MUTABLE_DISPLAYS = (
    ast.List,
    ast.Set,
    ast.Dict,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)
MUTABLE_CALLS = frozenset(
    {
        "ChainMap", "Condition", "ContextVar", "Counter", "Event", "Lock", "OrderedDict", "Queue",
        "RLock", "Semaphore", "SimpleNamespace", "WeakKeyDictionary", "WeakValueDictionary",
        "bytearray", "count", "defaultdict", "deque", "dict", "iter", "list", "local", "set",
    }
)  # fmt: skip
ARRAY_LIBRARIES = ("np.", "numpy.", "torch.")
IMMUTABLE_ARRAY_CALLS = frozenset({"Size", "device", "dtype", "finfo", "iinfo"})
READ_ONLY = ("Mapping", "Final[Mapping", "ClassVar[Mapping")
"""Annotations under which a dictionary cannot be changed without a type error."""

CACHES = frozenset({"cache", "lru_cache"})

ALLOWED_STATE = {
    "declaim.cli.main": {"app": "the commands register themselves on it at import, then it rests"},
}
"""Module-level values that are mutable all the same, by module and name, with the reason."""

ENVIRONMENT_READER = "declaim.config.load"
ENVIRONMENT_NAMES = frozenset({"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"})


def last_part(node: ast.expr) -> str:
    """`c` of the call target `a.b.c`."""
    return ast.unparse(node).rpartition(".")[2]


def is_mutable(value: ast.expr, annotation: ast.expr | None) -> bool:
    """Whether the value of a module-level or class-level name can be changed in place."""
    if isinstance(value, ast.Dict | ast.DictComp):
        return annotation is None or not ast.unparse(annotation).startswith(READ_ONLY)
    if isinstance(value, MUTABLE_DISPLAYS):
        return True
    if isinstance(value, ast.Tuple):
        return any(is_mutable(item, None) for item in value.elts)
    if isinstance(value, ast.Call):
        name = last_part(value.func)
        array = ast.unparse(value.func).startswith(ARRAY_LIBRARIES)
        return name in MUTABLE_CALLS or (array and name not in IMMUTABLE_ARRAY_CALLS)
    return False


def mutable_names(body: list[ast.stmt]) -> Iterator[str]:
    """Names that a module's or class's body binds to something mutable."""
    for node in body:
        if isinstance(node, ast.Assign):
            targets, value, annotation = node.targets, node.value, None
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets, value, annotation = [node.target], node.value, node.annotation
        else:
            continue
        names = [ast.unparse(target) for target in targets]
        if names != ["__all__"] and is_mutable(value, annotation):
            yield from names


def mutable_state(tree: ast.Module) -> Iterator[str]:
    """Mutable values in a module or a class body, caches, and `global`."""
    yield from mutable_names(tree.body)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}.{name}" for name in mutable_names(node.body))
        elif isinstance(node, ast.Global):
            yield f"global {', '.join(node.names)}"
        elif isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                target = decorator.func if isinstance(decorator, ast.Call) else decorator
                if last_part(target) in CACHES:
                    yield f"cached function {node.name}"


def variables(tree: ast.Module) -> Iterator[str]:
    """Plain lower-case module-level names: only constants, types and loggers live there."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            name = ast.unparse(target)
            dunder = name.startswith("__") and name.endswith("__")
            if name == name.lower() and not dunder and name != "logger":
                yield name
        if isinstance(node, ast.AugAssign | ast.For | ast.While):
            yield f"statement at line {node.lineno}"


def imported_names(tree: ast.Module) -> set[str]:
    """Local names that imports bind, at any depth."""
    return {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }


def patches(tree: ast.Module) -> Iterator[str]:
    """Assignments to, or deletions of, parts of anything imported."""
    foreign = imported_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and last_part(node.func) in {"setattr", "delattr"}:
            target: ast.expr | None = node.args[0] if node.args else None
        elif isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            target = node.value
        else:
            continue
        while isinstance(target, ast.Attribute | ast.Subscript):
            target = target.value
        if isinstance(target, ast.Name) and target.id in foreign:
            yield ast.unparse(node)


def environment_reads(tree: ast.Module) -> Iterator[str]:
    """Every mention of the process's environment."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ENVIRONMENT_NAMES | {"expandvars"}:
            yield ast.unparse(node)
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            yield from (alias.name for alias in node.names if alias.name in ENVIRONMENT_NAMES)


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (mutable_state, "CACHE = {}"),
        (mutable_state, "CACHE: dict[str, int] = {}"),
        (mutable_state, "NAMES = ['a']"),
        (mutable_state, "PAIRS = (1, [2])"),
        (mutable_state, "TABLE = torch.zeros(3)"),
        (mutable_state, "QUEUE = collections.deque()"),
        (mutable_state, "class A:\n    seen: set[str] = set()"),
        (mutable_state, "def f():\n    global X\n    X = 1"),
        (mutable_state, "@functools.lru_cache(maxsize=1)\ndef f(): ..."),
        (variables, "current_platform = None"),
        (variables, "count: int = 0"),
        (variables, "for x in (1, 2):\n    print(x)"),
        (patches, "import torch\ntorch.backends.flag = True"),
        (patches, "from a import B\nB.method = len"),
        (patches, "import sys\nsys.modules['a'] = None"),
        (patches, "from a import B\nB.count += 1"),
        (patches, "import a\nsetattr(a, 'b', 1)"),
        (patches, "def f():\n    import a\n    del a.b"),
        (environment_reads, "import os\nx = os.environ['HOME']"),
        (environment_reads, "import os\nx = os.getenv('HOME')"),
        (environment_reads, "from os import environ"),
    ],
)
def test_a_rule_sees_what_breaks_it(rule: Rule, source: str) -> None:
    assert list(rule(ast.parse(source))) != []


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (mutable_state, "LIMIT = 3\nNAMES = ('a', 'b')\nKNOWN = frozenset({'a'})"),
        (mutable_state, "CPU = torch.device('cpu')"),
        (mutable_state, "ROWS: Final[Mapping[str, int]] = {'a': 1}"),
        (mutable_state, "@dataclass\nclass A:\n    rows: list[int] = field(default_factory=list)"),
        (variables, "LIMIT = 3\nArray = NDArray[int]\nlogger = logging.getLogger(__name__)"),
        (patches, "import a\nclass B:\n    def __init__(self):\n        self.a = a.c\n"),
        (patches, "import a\nrows = a.zeros(3)\nrows[0] = 1"),
        (environment_reads, "import os\nx = os.cpu_count()"),
    ],
)
def test_a_rule_passes_what_keeps_it(rule: Rule, source: str) -> None:
    assert list(rule(ast.parse(source))) == []


@pytest.mark.parametrize("rule", [mutable_state, variables])
def test_no_module_level_state(rule: Rule, trees: Mapping[str, ast.Module]) -> None:
    found = {
        name: broken
        for name, tree in trees.items()
        if (broken := [item for item in rule(tree) if item not in ALLOWED_STATE.get(name, {})])
    }
    assert found == {}


def test_nothing_imported_is_changed(trees: Mapping[str, ast.Module]) -> None:
    found = {name: broken for name, tree in trees.items() if (broken := list(patches(tree)))}
    assert found == {}


def test_one_module_reads_the_environment(trees: Mapping[str, ast.Module]) -> None:
    readers = {name for name, tree in trees.items() if list(environment_reads(tree))}
    assert readers <= {ENVIRONMENT_READER}
