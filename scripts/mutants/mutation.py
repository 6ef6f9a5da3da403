"""One fault: where it is planted, and the tests that must notice it."""

from dataclasses import dataclass
from pathlib import Path


class PlaceError(Exception):
    """The place of a fault is not in its file exactly once."""


@dataclass(frozen=True)
class Mutation:
    """A fault, planted by replacing one piece of text.

    kind: what the fault breaks; name: what it does, in words. file: below src/declaim.
    old must stand in the file exactly once and becomes new. tests: pytest arguments, files or
    single tests below tests/; at least one of them must fail.
    """

    kind: str
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def planted(self, package: Path) -> str:
        """The file's text with the fault; raises PlaceError unless old stands there once."""
        path = package / self.file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        found = text.count(self.old)
        if found != 1:
            raise PlaceError(
                f"{self.name}: its place stands {found} times in {self.file}, not once"
            )
        return text.replace(self.old, self.new)


def faults(kind: str, *entries: tuple[str, str, str, str, tuple[str, ...]]) -> tuple[Mutation, ...]:
    """Faults of one kind, each as (name, file, old, new, tests)."""
    return tuple(Mutation(kind, *entry) for entry in entries)
