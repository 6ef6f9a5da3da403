"""Typed reading of one JSON object: every wrong value becomes an InvalidCheckpoint by name.

Knows dotted names, types and limits; knows none of the keys. A null counts as absent.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from declaim.contracts.errors import InvalidCheckpoint

LARGEST_SIZE = 2**31 - 1


class Section:
    """A JSON object of a checkpoint's file, read key by key.

    Reading a key marks it as known; `unknown` lists the others. `name` is the dotted name of the
    object itself, empty at the top of config.json.
    """

    def __init__(self, raw: object, name: str = "") -> None:
        if not isinstance(raw, Mapping):
            raise refusal(name or "config.json", "a JSON object", raw)
        self._raw: Mapping[str, Any] = raw
        self._known: set[str] = set()
        self.name = name

    def dotted(self, key: str) -> str:
        """The key's name from the top of the file."""
        return f"{self.name}.{key}" if self.name else key

    def get(self, key: str) -> object:
        """The raw value, None if absent or null."""
        self._known.add(key)
        return self._raw.get(key)

    def ignore(self, *keys: str) -> None:
        """Mark keys as known although nothing here reads them."""
        self._known.update(keys)

    def refuse(self, key: str, accepted: str, value: object) -> InvalidCheckpoint:
        """The error for a key of this section; the caller raises it."""
        return refusal(self.dotted(key), accepted, value)

    def section(self, key: str) -> "Section":
        """A JSON object that must be there."""
        return Section(self.get(key), self.dotted(key))

    def optional_section(self, key: str) -> "Section | None":
        """A JSON object, or None where the key is absent or null."""
        return None if self.get(key) is None else self.section(key)

    def integer(
        self, key: str, low: int = 1, high: int = LARGEST_SIZE, default: int | None = None
    ) -> int:
        """An integer in [low, high]; without a default the key must be there."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.refuse(key, f"an integer in [{low}, {high}]", value)
        return value

    def positive(
        self, key: str, high: float = sys.float_info.max, default: float | None = None
    ) -> float:
        """A finite number in (0, high]; without a default the key must be there."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        limit = "a number > 0" if high == sys.float_info.max else f"a number in (0, {high:g}]"
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.refuse(key, limit, value)
        if not 0 < value <= high:
            raise self.refuse(key, limit, value)
        return float(value)

    def choice(self, key: str, accepted: Sequence[str], default: str | None = None) -> str:
        """One of the accepted strings; without a default the key must be there."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or value not in accepted:
            raise self.refuse(key, " or ".join(accepted), value)
        return value

    def flag(self, key: str, wanted: bool, *, required: bool = False) -> None:
        """A boolean that can have one value only; absent is fine unless it is required."""
        value = self.get(key)
        if value is None and not required:
            return
        if value is not wanted:
            absent = "" if required else " or absent"
            raise self.refuse(key, f"{str(wanted).lower()}{absent}", value)

    def choices(self, key: str, accepted: Sequence[str], length: int) -> tuple[str, ...]:
        """A list of `length` strings, each one of the accepted; the key must be there."""
        value = self.get(key)
        rule = f"a list of {length} entries, each {' or '.join(accepted)}"
        if not isinstance(value, list) or len(value) != length:
            found = f"a list of {len(value)} entries" if isinstance(value, list) else value
            raise self.refuse(key, rule, found)
        for index, entry in enumerate(value):
            if not isinstance(entry, str) or entry not in accepted:
                raise self.refuse(f"{key}[{index}]", " or ".join(accepted), entry)
        return tuple(value)

    def unknown(self) -> Iterator[str]:
        """Dotted names of the keys that nothing has asked for."""
        for key in self._raw:
            if key not in self._known:
                yield self.dotted(key)

    def items(self) -> Iterator[tuple[str, object]]:
        """All keys and raw values, without marking any."""
        return iter(self._raw.items())


def refusal(name: str, accepted: str, value: object) -> InvalidCheckpoint:
    """An InvalidCheckpoint that names the key, what is accepted and what was found."""
    found = "it is missing" if value is None else f"found {shortened(value)}"
    return InvalidCheckpoint(
        f"{name} must be {accepted}; {found}", param=name, limit=accepted, value=value
    )


def shortened(value: object) -> str:
    """The value as JSON would show it, cut to a length that fits a sentence."""
    if value is True or value is False:
        return str(value).lower()
    if isinstance(value, Mapping):
        return "an object" if value else "{}"
    if isinstance(value, int) and value.bit_length() > 256:
        return "an integer of more than 256 bits"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
