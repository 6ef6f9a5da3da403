"""declaim: serves expressive speech models as a stream. Imports nothing until it is used."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from declaim.api import Setup, Speech, say
    from declaim.engine.engine import Engine

__all__ = ["Engine", "Setup", "Speech", "__version__", "say"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """The public names, imported when they are first asked for."""
    if name == "Engine":
        from declaim.engine.engine import Engine

        return Engine
    if name in __all__:
        from declaim import api

        return getattr(api, name)
    raise AttributeError(f"module 'declaim' has no attribute {name!r}")
