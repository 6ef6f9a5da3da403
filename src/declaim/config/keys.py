"""Every key by its dotted name, and a document's sections flattened into such names.

A stage's part of a name is its stage_id: stages.0.max_num_seqs. Knows no file and no precedence.
"""

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
from declaim.config.values import invalid, nearest, rule_of, shown, unknown
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
    where = f" in {section}" if section else ""
    key = dotted(section, str(name)[:80])
    known = tuple(fields_of(section))
    elsewhere = tuple(other for other in KEYS if other.rpartition(".")[2] == name)
    return unknown("key", name, elsewhere[:1] or known, key=key, source=f"{source}{where}")


def _checked(section: str, name: str, value: object, source: str) -> object:
    """The value as the section keeps it."""
    model = SECTIONS[section]
    try:
        return getattr(model(**{name: value}), name)
    except InvalidConfig as error:
        key = dotted(section, name)
        message = error.message.replace(name, key, 1)
        raise InvalidConfig(
            f"{message} ({source})", param=key, limit=error.limit, value=value
        ) from None


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
    name = str(stage_id) if isinstance(stage_id, int) and not isinstance(stage_id, bool) else ""
    if name in STAGE_IDS:
        return name
    number = isinstance(stage_id, int) and not isinstance(stage_id, bool)
    closest = ("1" if stage_id > 0 else "0") if number else nearest(stage_id, STAGE_IDS)
    raise InvalidConfig(
        f"there is no stage {shown(stage_id)} ({source}): 0 is the frame stage, 1 the codec "
        f"stage; did you mean {closest}?",
        param="stages.stage_id",
        limit=", ".join(STAGE_IDS),
        value=stage_id,
    )


def nested(path: str, value: object, source: str) -> dict[str, Any]:
    """A document that holds nothing but one value at a dotted path; a stage is its number."""
    first, *rest = path.split(".")
    if first == STAGES and rest:
        stage = int(rest[0]) if rest[0] in STAGE_IDS else rest[0]
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


def unflatten(settings: Mapping[str, Setting], blocks: Mapping[str, Any]) -> Deploy:
    """The deploy of all dotted keys."""

    def values(section: str) -> dict[str, Any]:
        start = dotted(section, "")
        own = {
            key.removeprefix(start): item.value
            for key, item in settings.items()
            if key.startswith(start)
        }
        return {name: value for name, value in own.items() if "." not in name}

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
        platforms=blocks,
    )
