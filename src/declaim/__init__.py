"""declaim: serves expressive speech models as a stream. Imports nothing until it is used."""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from declaim.api import Setup, Speech, say
    from declaim.engine.engine import Engine

__all__ = ["Engine", "Setup", "Speech", "__version__", "say"]

__version__ = "0.1.0"


_HOMES: Mapping[str, str] = {
    "Engine": "declaim.engine.engine",
    "Setup": "declaim.api",
    "Speech": "declaim.api",
    "say": "declaim.api",
}


def __getattr__(name: str) -> Any:
    """The public names, imported when they are first asked for."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'declaim' has no attribute {name!r}")
