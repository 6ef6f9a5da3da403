"""What the environment says; no other module reads it."""

import os
from pathlib import Path


def cache_directory() -> Path:
    """Where declaim keeps what it can make again: $XDG_CACHE_HOME or ~/.cache, then declaim.

    The folder need not exist. A relative $XDG_CACHE_HOME counts as unset.
    """
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    base = named if named.is_absolute() else Path.home() / ".cache"
    return base / "declaim"
