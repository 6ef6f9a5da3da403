"""What the environment says, and the deploy settings that it and files and flags resolve to.

The only reader of the environment. Precedence, highest first: command line, environment, the
file's block of a platform in use, the file, its bases in the same way, defaults.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from declaim.config.documents import (
    Document,
    Location,
    locate,
    parse_yaml,
    read_chain,
    read_document,
)
from declaim.config.keys import (
    KEYS,
    PLATFORM_BLOCKS,
    STAGE_IDS,
    STAGES,
    Setting,
    flatten,
    nested,
    unflatten,
)
from declaim.config.schema import DEFAULT_PRESET, Deploy
from declaim.config.values import takes_text
from declaim.contracts.errors import InvalidConfig

PREFIX = "DECLAIM_"
COMMAND_LINE = "--set"
DEFAULT = "default"

Layer = dict[str, Setting]


@dataclass(frozen=True)
class Resolved:
    """A deploy and where each of its values comes from, by dotted name in the file's order.

    notes: what was adjusted, a sentence each, for the report at start.
    """

    deploy: Deploy
    settings: Mapping[str, Setting]
    notes: tuple[str, ...]


def cache_directory() -> Path:
    """Where declaim keeps what it can make again: $XDG_CACHE_HOME or ~/.cache, then declaim.

    The folder need not exist. A relative $XDG_CACHE_HOME counts as unset.
    """
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    base = named if named.is_absolute() else Path.home() / ".cache"
    return base / "declaim"


def load_deploy(
    deploy: str | Path | None = None,
    assignments: Sequence[str] = (),
    *,
    flags: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Resolved:
    """Resolve all settings.

    deploy: a file or a preset's name; without one, the values of the default preset.
    assignments: key=value of --set, the last of a key counts. flags: values of named flags by
    dotted key, above --set. environment: the process's own by default.
    Raises InvalidConfig for anything wrong in any layer, NotFound for a file that is not there.
    """
    command_line = _assigned(assignments)
    for key, value in (flags or {}).items():
        source = f"--{key.rpartition('.')[2].replace('_', '-')}"
        command_line |= flatten(nested(key, value, source), "", source)
    from_environment = _from_environment(os.environ if environment is None else environment)
    above = from_environment | command_line
    first = _first_document(deploy)
    chain = read_chain(first, {**first.plain, **above}.get("base_config"))
    settings = _merged(chain, above)
    blocks = first.raw_blocks
    settings[PLATFORM_BLOCKS] = Setting(blocks, first.location.source if blocks else DEFAULT)
    settings, notes = _adjusted(settings)
    return Resolved(unflatten(settings), settings, notes)


def fit_context(resolved: Resolved, context: int) -> Resolved:
    """The settings for a checkpoint of that context: a longer max_model_len is lowered to it."""
    key = "stages.0.max_model_len"
    setting = resolved.settings[key]
    assert isinstance(setting.value, int)
    if setting.value <= context:
        return resolved
    note = f"{key} is lowered from {setting.value} to the checkpoint's context of {context} rows"
    settings = {**resolved.settings, key: Setting(context, setting.source)}
    return Resolved(unflatten(settings), settings, (*resolved.notes, note))


def _first_document(deploy: str | Path | None) -> Document:
    if deploy is None:
        base = Setting(DEFAULT_PRESET, DEFAULT)
        return Document(Location(DEFAULT, None), {"base_config": base}, {}, {})
    return read_document(locate(str(deploy), Path(), "deploy"))


def _assigned(assignments: Sequence[str]) -> Layer:
    layer: Layer = {}
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals:
            raise InvalidConfig(
                f"{COMMAND_LINE} must be key=value; found {assignment[:80]!r}",
                param=COMMAND_LINE,
                limit="key=value",
                value=assignment,
            )
        layer |= _assignment(path.strip(), text, COMMAND_LINE)
    return layer


def _from_environment(environment: Mapping[str, str]) -> Layer:
    layer: Layer = {}
    for name in sorted(environment):
        if not name.startswith(PREFIX):
            continue
        path = name.removeprefix(PREFIX).lower().replace("__", ".")
        layer |= _assignment(path, environment[name], f"environment {name}")
    return layer


def _assignment(path: str, text: str, source: str) -> Layer:
    """The values of one dotted path whose value is written as YAML."""
    if path.partition(".")[0] == PLATFORM_BLOCKS:
        raise InvalidConfig(
            f"{PLATFORM_BLOCKS} can be set in a deploy file only, not by {source}",
            param=path,
            limit="a deploy file",
            value=text,
        )
    value = parse_yaml(text, f"the value of {path} ({source})", path)
    key = KEYS.get(path)
    if key is not None and takes_text(key.annotation) and isinstance(value, int | float):
        value = text
    return flatten(nested(path, value, source), "", source)


def _merged(chain: Sequence[Document], above: Layer) -> Layer:
    """Every key's value from the highest layer that has it; above: environment, command line."""
    plain: Layer = {}
    for document in reversed(chain):
        plain |= document.plain
    plain |= above
    platforms = {stage: _platform_of(plain, stage) for stage in STAGE_IDS}
    merged = {name: Setting(key.default, DEFAULT) for name, key in KEYS.items()}
    for document in reversed(chain):
        merged |= document.plain
        merged |= dict(_in_use(document, platforms))
    return merged | above


def _platform_of(plain: Layer, stage: str) -> object:
    key = f"{STAGES}.{stage}.platform"
    return plain[key].value if key in plain else KEYS[key].default


def _in_use(document: Document, platforms: Mapping[str, Any]) -> Iterator[tuple[str, Setting]]:
    """The values of blocks that count: a stage's where it uses the platform, others where any."""
    for platform, block in document.blocks.items():
        for key, setting in block.items():
            first, *rest = key.split(".")
            used = [platforms[rest[0]]] if first == STAGES else platforms.values()
            if platform in used:
                yield key, setting


def _adjusted(settings: Layer) -> tuple[Layer, tuple[str, ...]]:
    """Settings that agree with each other, and a sentence for each one that was changed."""
    key, limit = "stages.0.max_num_seqs", "stages.0.max_num_batched_tokens"
    requests, rows = settings[key], settings[limit]
    assert isinstance(requests.value, int) and isinstance(rows.value, int)
    if requests.value <= rows.value:
        return settings, ()
    note = (
        f"{key} is lowered from {requests.value} to {rows.value}, since {limit} is {rows.value} "
        f"({rows.source})"
    )
    return {**settings, key: Setting(rows.value, requests.source)}, (note,)
