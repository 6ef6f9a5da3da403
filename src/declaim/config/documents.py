"""Deploy files and presets: YAML text to checked, flattened documents, and their chain of bases.

Knows no environment, no command line and no precedence.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from declaim.config.keys import PLATFORM_BLOCKS, Setting, flatten
from declaim.config.schema import PLATFORMS, Deploy, as_platform
from declaim.config.values import invalid, spelled, unknown
from declaim.contracts.errors import InvalidConfig, NotFound

SUFFIXES = (".yaml", ".yml")
NOT_IN_BLOCKS = ("base_config", PLATFORM_BLOCKS)


@dataclass(frozen=True)
class Location:
    """Where a document lies: a file, or a preset where path is None."""

    name: str
    path: Path | None

    @property
    def source(self) -> str:
        """How the document is called in errors and reports."""
        return f"preset {self.name}" if self.path is None else f"file {self.path}"

    @property
    def identity(self) -> str:
        """The same for two spellings of one place."""
        return self.source if self.path is None else f"file {self.path.resolve()}"


@dataclass(frozen=True)
class Document:
    """One file's own values. blocks: those of its platform blocks. raw_blocks: as they stand."""

    location: Location
    plain: Mapping[str, Setting]
    blocks: Mapping[str, Mapping[str, Setting]]
    raw_blocks: Mapping[str, Any]


class _Loader(yaml.SafeLoader):
    """Plain YAML in which no mapping has a key twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        """A mapping; ConstructorError if one of its keys stands there twice."""
        seen: set[Hashable] = set()
        for key_node, _value in node.value if isinstance(node, yaml.MappingNode) else ():
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                problem = f"the key {key!r} stands there twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            if isinstance(key, Hashable):
                seen.add(key)
        return super().construct_mapping(node, deep=deep)


def parse_yaml(text: str, source: str, param: str) -> object:
    """The value of a YAML text; InvalidConfig, naming source and param, if it is not YAML."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise _not_yaml(source, param, f"{error.problem or error.context}{place}") from error
    except (yaml.YAMLError, ArithmeticError, AttributeError, LookupError) as error:
        raise _not_yaml(source, param, "it holds a value that YAML does not allow") from error
    except (RecursionError, TypeError, ValueError) as error:
        raise _not_yaml(source, param, "it holds a value that cannot be read") from error


def _not_yaml(source: str, param: str, problem: str) -> InvalidConfig:
    return InvalidConfig(f"{source} is not YAML: {problem}", param=param, limit="YAML")


def preset_names() -> tuple[str, ...]:
    """The presets that declaim brings."""
    folder = files("declaim.config").joinpath("presets")
    names = (item.name for item in folder.iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml")))


def locate(name: str, folder: Path | None, key: str, source: str = "") -> Location:
    """The preset of that name, else the file of that path, relative to the folder.

    folder: None inside a preset, which knows presets only. InvalidConfig names the nearest preset
    where the name can only be meant as one, NotFound a path that is not there.
    """
    presets = preset_names()
    if name in presets:
        return Location(name, None)
    if folder is not None:
        path = folder / name
        try:
            there = path.exists()
        except (OSError, ValueError):
            there = False
        if there:
            return Location(name, path)
    if folder is None or not ("/" in name or name.endswith(SUFFIXES)):
        raise unknown("preset or file", name, presets, key=key, source=source)
    raise NotFound(f"{key} names {path}, which is not there", param=key, value=str(path))


def read_document(location: Location) -> Document:
    """Read and check a file or preset; InvalidConfig or NotFound say what is wrong with it."""
    source = location.source
    raw = parse_yaml(_text(location), source, "deploy")
    if not isinstance(raw, dict):
        raise invalid(source, "a mapping of keys to values", raw)
    raw_blocks = raw.get(PLATFORM_BLOCKS, {})
    plain = {name: value for name, value in raw.items() if name != PLATFORM_BLOCKS}
    if not isinstance(raw_blocks, dict):
        raise invalid(
            PLATFORM_BLOCKS, "a mapping of platforms to blocks", raw_blocks, source=source
        )
    raw_blocks = {as_platform(name): block for name, block in raw_blocks.items()}
    blocks = {name: _block(name, block, source) for name, block in raw_blocks.items()}
    return Document(location, flatten(plain, "", source), blocks, raw_blocks)


def _text(location: Location) -> str:
    if location.path is None:
        folder = files("declaim.config").joinpath("presets")
        return folder.joinpath(f"{location.name}.yaml").read_text(encoding="utf-8")
    try:
        return location.path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        path = str(location.path)
        raise NotFound(f"there is no deploy file {path}", param="deploy", value=path) from error
    except OSError as error:
        problem = error.strerror or "it cannot be opened"
    except ValueError:
        problem = "it is not UTF-8 text"
    raise InvalidConfig(
        f"{location.source} cannot be read: {problem}", param="deploy", value=str(location.path)
    )


def _block(platform: object, raw: object, source: str) -> dict[str, Setting]:
    """The checked values of one platform block."""
    if not isinstance(platform, str) or platform not in PLATFORMS:
        key = f"{PLATFORM_BLOCKS}.{spelled(platform)}"
        raise unknown("platform", platform, PLATFORMS, key=key, source=source)
    name = f"{PLATFORM_BLOCKS}.{platform}"
    if not isinstance(raw, dict):
        raise invalid(name, "a mapping", raw, source=source)
    inside = f"{source}, {name}"
    settings = flatten(
        {key: value for key, value in raw.items() if key not in NOT_IN_BLOCKS}, "", inside
    )
    forbidden = [key for key in raw if key in NOT_IN_BLOCKS]
    forbidden += [key for key in settings if key.endswith(".platform")]
    if forbidden:
        raise InvalidConfig(
            f"a platform block may not set {forbidden[0]} ({inside})",
            param=f"{name}.{forbidden[0]}",
            limit="every other key",
            value=forbidden[0],
        )
    return settings


def to_yaml(deploy: Deploy) -> str:
    """The whole deploy as a file that resolves to the same values.

    Bases and the blocks of platforms in use are in the values already, so they are left out.
    """
    content = deploy.model_dump(mode="json")
    sampling = deploy.frames.default_sampling_params.model_dump(exclude_none=True)
    content["stages"][0]["default_sampling_params"] = sampling
    content["base_config"] = None
    used = {stage.platform for stage in deploy.stages}
    content[PLATFORM_BLOCKS] = {
        name: block for name, block in deploy.platforms.items() if name not in used
    }
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def read_chain(first: Document, base: Setting | None) -> tuple[Document, ...]:
    """A document and its bases, each below the one before it.

    base: what the first document's base_config is, if it is set anywhere. InvalidConfig for a
    cycle, naming all of it.
    """
    chain, places = [first], [first.location]
    while base is not None and base.value is not None:
        assert isinstance(base.value, str)
        below = chain[-1].location
        folder = _folder(below) if base.source == below.source else Path()
        location = locate(base.value, folder, "base_config", base.source)
        if location.identity in [place.identity for place in places]:
            names = " -> ".join(place.source for place in (*places, location))
            raise InvalidConfig(
                f"base_config goes round in a circle: {names}",
                param="base_config",
                limit="no file twice",
                value=base.value,
            )
        places.append(location)
        chain.append(read_document(location))
        base = chain[-1].plain.get("base_config")
    return tuple(chain)


def _folder(location: Location) -> Path | None:
    return None if location.path is None else location.path.parent
