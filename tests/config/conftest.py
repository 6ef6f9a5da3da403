from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from declaim.nano.shapes import SHAPES

Edit = Callable[[Mapping[str, Any]], dict[str, Any]]
Write = Callable[[str, object], Path]


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


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a deploy file beside the others of the test: its name, and text or a document."""

    def get(name: str, content: object) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = content if isinstance(content, str) else yaml.safe_dump(content)
        path.write_text(text, encoding="utf-8")
        return path

    return get
