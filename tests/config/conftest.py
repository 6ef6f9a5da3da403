from collections.abc import Callable, Mapping
from typing import Any

import pytest

from declaim.nano.shapes import SHAPES

Edit = Callable[[Mapping[str, Any]], dict[str, Any]]


def _edited(edits: Mapping[str, Any]) -> dict[str, Any]:
    config = SHAPES["micro"].config
    for dotted, value in edits.items():
        *path, key = dotted.split(".")
        target = config
        for part in path:
            target = target[part]
        if value == "<absent>":
            target.pop(key, None)
        else:
            target[key] = value
    return config


@pytest.fixture(scope="session")
def edited() -> Edit:
    """A good config.json with some dotted keys set, or taken out where the value is <absent>."""
    return _edited
