"""Every key by its dotted name, and a document's sections flattened into such names.

A stage's part of a name is its stage_id: stages.0.max_num_seqs. Knows no file and no precedence.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic.fields import FieldInfo

from declaim.config.schema import (
    CodecStage,
    Deploy,
    FrameStage,
    Limits,
    SamplingDefaults,
    Server,
    Settings,
    Voices,
)
from declaim.config.values import choices_of, invalid, nearest, rule_of, shown, spelled
from declaim.contracts.errors import InvalidConfig

SECTIONS: Mapping[str, type[Settings]] = {
    "": Deploy,
    "stages.0": FrameStage,
    "stages.0.default_sampling_params": SamplingDefaults,
    "stages.1": CodecStage,
    "server": Server,
    "voices": Voices,
    "limits": Limits,
}
STAGES = "stages"
PLATFORM_BLOCKS = "platforms"
STAGE_IDS = ("0", "1")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")


@dataclass(frozen=True)
class Key:
    """One key: its dotted name, what a value must be, the default and what it means."""

    name: str
    rule: str
    default: object
    meaning: str
    annotation: Any


@dataclass(frozen=True)
class Setting:
    """A value and where it comes from."""

    value: object
    source: str


def dotted(section: str, name: str) -> str:
    """The dotted name of a section's key."""
    return f"{section}.{name}" if section else name


def fields_of(section: str) -> dict[str, FieldInfo]:
    """The keys that a section of the file may have."""
    fields = SECTIONS[section].model_fields
    return {name: field for name, field in fields.items() if not field.exclude}


def _keys(section: str) -> Iterator[Key]:
    for name, field in fields_of(section).items():
        key = dotted(section, name)
        if key == STAGES:
            for stage in STAGE_IDS:
                yield from _keys(dotted(STAGES, stage))
        elif key in SECTIONS:
            yield from _keys(key)
        elif key != PLATFORM_BLOCKS:
            rule = rule_of(field.annotation, field.metadata)
            annotation = field.rebuild_annotation()
            yield Key(key, rule, field.default, field.description or "", annotation)


KEYS: Mapping[str, Key] = {key.name: key for key in _keys("")}
"""Every key with a value of its own, in the order of the file."""


def flatten(raw: object, section: str, source: str) -> dict[str, Setting]:
    """A section's values by dotted name, each one checked; InvalidConfig names a wrong one."""
    if section == STAGES:
        return _flatten_stages(raw, source)
    if not isinstance(raw, Mapping):
        raise invalid(section or "the file", "a mapping", raw, source=source)
    fields = fields_of(section)
    found: dict[str, Setting] = {}
    for name, value in raw.items():
        if not isinstance(name, str) or name not in fields:
            raise unknown_key(name, section, source)
        key = dotted(section, name)
        if key == STAGES or key in SECTIONS:
            found |= flatten(value, key, source)
        elif name != "stage_id":
            found[key] = Setting(_checked(section, name, value, source), source)
    return found


def unknown_key(name: object, section: str, source: str) -> InvalidConfig:
    """The error for a key that a section does not have; the caller raises it.

    It names the key of this section that is most like it, or the one that has exactly this name
    in another section.
    """
    key = dotted(section, spelled(name))
    elsewhere = [other for other in KEYS if other.rpartition(".")[2] == name]
    meant = elsewhere[0] if elsewhere else dotted(section, nearest(name, fields_of(section)))
    return InvalidConfig(
        f"there is no key {key or shown(name)} ({source}); did you mean {meant}?",
        param=key,
        limit=", ".join(fields_of(section)),
        value=name,
    )


def _checked(section: str, name: str, value: object, source: str) -> object:
    """The value as the section keeps it."""
    model = SECTIONS[section]
    try:
        return getattr(model(**{name: value}), name)
    except InvalidConfig:
        key = KEYS[dotted(section, name)]
        choices = choices_of(key.annotation)
        raise invalid(key.name, key.rule, value, choices=choices, source=source) from None


def _flatten_stages(raw: object, source: str) -> dict[str, Setting]:
    rule = "a list of entries with a stage_id"
    if not isinstance(raw, list):
        raise invalid(STAGES, rule, raw, source=source)
    found: dict[str, Setting] = {}
    seen: set[str] = set()
    for entry in raw:
        if not isinstance(entry, Mapping) or "stage_id" not in entry:
            raise invalid(
                f"each entry of {STAGES}", "a mapping with a stage_id", entry, source=source
            )
        stage = stage_name(entry["stage_id"], source)
        if stage in seen:
            raise invalid(STAGES, f"{rule}, each one once", entry["stage_id"], source=source)
        seen.add(stage)
        found |= flatten(entry, dotted(STAGES, stage), source)
    return found


def stage_name(stage_id: object, source: str) -> str:
    """The stage's part of a dotted name; InvalidConfig if there is no such stage."""
    if type(stage_id) is int and 0 <= stage_id < len(STAGE_IDS):
        return str(stage_id)
    names = {**{name: name for name in STAGE_IDS}, "frames": "0", "codec": "1"}
    meant = min(max(stage_id, 0), 1) if type(stage_id) is int else names[nearest(stage_id, names)]
    raise InvalidConfig(
        f"there is no stage {shown(stage_id)} ({source}): 0 is the frame stage, 1 the codec "
        f"stage; did you mean {meant}?",
        param="stages.stage_id",
        limit=", ".join(STAGE_IDS),
        value=stage_id,
    )


def nested(path: str, value: object, source: str) -> dict[str, Any]:
    """A document that holds nothing but one value at a dotted path; a stage is its number."""
    first, *rest = path.split(".")
    if first == STAGES and rest:
        stage = int(rest[0]) if _NUMBER.fullmatch(rest[0]) else rest[0]
        name = stage_name(stage, source)
        inner = _nested(rest[1:], value) if rest[1:] else value
        if not isinstance(inner, Mapping):
            raise invalid(dotted(STAGES, name), "a mapping", inner, source=source)
        if inner.get("stage_id", stage) != stage:
            key = dotted(STAGES, f"{name}.stage_id")
            raise invalid(key, name, inner["stage_id"], source=source)
        return {STAGES: [{**inner, "stage_id": stage}]}
    document: dict[str, Any] = _nested([first, *rest], value)
    return document


def _nested(parts: list[str], value: object) -> Any:
    for part in reversed(parts):
        value = {part: value}
    return value


def unflatten(settings: Mapping[str, Setting]) -> Deploy:
    """The deploy of all dotted keys and of the raw platform blocks."""

    def values(section: str) -> dict[str, Any]:
        return {
            name: settings[key].value
            for name in fields_of(section)
            if (key := dotted(section, name)) in settings
        }

    frames = values("stages.0")
    frames["default_sampling_params"] = SamplingDefaults(
        **values("stages.0.default_sampling_params")
    )
    return Deploy(
        **values(""),
        stages=(FrameStage(**frames), CodecStage(**values("stages.1"))),
        server=Server(**values("server")),
        voices=Voices(**values("voices")),
        limits=Limits(**values("limits")),
    )
