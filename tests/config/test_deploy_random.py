"""Whatever a file, a variable or an assignment holds, the answer is settings or a named error."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from declaim.config.documents import to_yaml
from declaim.config.keys import KEYS, fields_of
from declaim.config.load import load_deploy
from declaim.contracts.errors import InvalidConfig, NotFound

WORDS = st.sampled_from(
    [*fields_of(""), *fields_of("stages.0"), *fields_of("server"), "npu", "cpu", "null", "0", ""]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-2, 20)
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["auto", "cpu", "npu", "frames", "codec", "1GiB", "nano-cpu", "bfloat16"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.text(), inner, max_size=3)
    ),
    max_leaves=8,
)


def right_value(key: str) -> st.SearchStrategy[object]:
    """A value that has a chance to be taken."""
    default = KEYS[key].default
    kept = list(default) if isinstance(default, tuple) else default
    return st.just(kept) | st.integers(1, 9) | SCALARS


ASSIGNMENTS = st.sampled_from(sorted(KEYS)).flatmap(
    lambda key: st.tuples(st.just(key), right_value(key))
)
STAGE = st.fixed_dictionaries(
    {"stage_id": st.integers(0, 1) | SCALARS},
    optional={name: SCALARS for name in fields_of("stages.1") if name != "stage_id"},
)
PLAIN = st.fixed_dictionaries(
    {},
    optional={
        "stages": st.lists(STAGE, max_size=2) | VALUES,
        "server": st.fixed_dictionaries({}, optional={"port": SCALARS, "host": SCALARS}) | VALUES,
        "limits": VALUES,
        "base_config": st.sampled_from(["nano-cpu", "file.yaml", "absent.yaml"]) | VALUES,
    },
)
BLOCKS = st.dictionaries(st.sampled_from(["npu", "cpu", "gpu"]), PLAIN | VALUES, max_size=2)


def check(deploy: Path | None, assignments: list[str], environment: Mapping[str, str]) -> None:
    """Settings that print as a file with the same values, or an error that says what is wrong."""
    try:
        found = load_deploy(deploy, assignments, environment=environment)
    except (InvalidConfig, NotFound) as error:
        assert error.message and len(error.message) < 800
        return
    assert set(found.settings) == {*KEYS, "platforms"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "again.yaml"
        path.write_text(to_yaml(found.deploy), encoding="utf-8")
        again = load_deploy(path, environment={}).deploy
    assert again.replaced(base_config=None, platforms={}) == (
        found.deploy.replaced(base_config=None, platforms={})
    )


@settings(max_examples=150, deadline=None)
@given(content=PLAIN, blocks=BLOCKS, raw=VALUES, use_raw=st.booleans())
def test_any_file(content: Any, blocks: Any, raw: Any, use_raw: bool) -> None:
    document = raw if use_raw else {**content, "platforms": blocks}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file.yaml"
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        check(path, [], {})


@settings(max_examples=100, deadline=None)
@given(text=st.text(st.sampled_from("model:stage_id[]{}&*!?|>-,'\"#%@0 \n\t"), max_size=40))
def test_any_text(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file.yaml"
        path.write_text(text, encoding="utf-8")
        check(path, [], {})


@settings(max_examples=150, deadline=None)
@given(
    pairs=st.lists(ASSIGNMENTS, max_size=4),
    variables=st.lists(ASSIGNMENTS, max_size=3),
    odd=st.text(max_size=12),
)
def test_any_assignments_and_variables(
    pairs: list[tuple[str, object]], variables: list[tuple[str, object]], odd: str
) -> None:
    assignments = [
        f"{key}={yaml.safe_dump(value, default_flow_style=True)}" for key, value in pairs
    ]
    environment = {
        "DECLAIM_" + key.upper().replace(".", "__"): str(value) for key, value in variables
    }
    check(None, assignments, environment)
    check(None, [odd, *assignments], environment)
    check(None, [f"stages.0.{odd}"], {f"DECLAIM_{odd}": odd})
