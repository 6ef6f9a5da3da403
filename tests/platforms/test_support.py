"""What a deploy may ask of this build: refused by key, or taken."""

import pytest

from declaim.config.load import load_deploy
from declaim.config.schema import Deploy
from declaim.contracts.errors import InvalidConfig
from declaim.platforms.support import check_supported


def deploy_of(*assignments: str) -> Deploy:
    return load_deploy(None, assignments, environment={}).deploy


def test_the_default_is_taken() -> None:
    check_supported(deploy_of())


@pytest.mark.parametrize(
    "assignment",
    [
        "stages.0.dtype=float32",
        "stages.1.dtype=float32",
        "stages.0.page_size=48",
        "stages.0.load_format=random",
        "stages.0.mamba_ssm_cache_dtype=bfloat16",
        "stages.0.kv_pages=3",
        "stages.0.threads=2",
        "stages.0.cudagraph_mode=PIECEWISE",
        "stages.0.cudagraph_capture_sizes=[1, 8]",
        "stages.0.default_sampling_params.top_p=0.5",
        "server.port=0",
        "platforms",
    ],
)
def test_what_the_build_can_do_is_taken(assignment: str) -> None:
    assignments = [] if assignment == "platforms" else [assignment]
    asked = deploy_of(*assignments)
    if not assignments:
        asked = asked.replaced(platforms={"npu": {"model": "other"}})
    check_supported(asked)


REFUSED = [
    ("stages.0.platform=cuda", "platform cuda cannot take runner frames", "cpu"),
    ("stages.0.platform=npu", "platform npu cannot take runner frames", "cpu"),
    ("stages.0.platform=null", "platform null cannot take runner frames", "cpu"),
    ("stages.1.platform=cuda", "platform cuda cannot take runner codec", "cpu"),
    ("stages.0.runner=codec", "stage 0 cannot take runner codec", "frames"),
    ("stages.1.runner=frames", "stage 1 cannot take runner frames", "codec"),
    ("stages.0.devices=[1]", "must be [0] on platform cpu in this build; found [1]", "[0]"),
    ("stages.1.devices=[0, 1]", "must be [0] on platform cpu", "[0]"),
    ("stages.0.dtype=bfloat16", "must be auto or float32 on platform cpu", "auto or float32"),
    ("stages.1.dtype=float16", "must be auto or float32 on platform cpu", "auto or float32"),
    ("stages.0.tensor_parallel_size=2", "must be 1 on platform cpu in this build; found 2", "1"),
    ("stages.0.enable_expert_parallel=true", "must be false on platform cpu", "false"),
    ("stages.0.page_size=17", "must be null or a multiple of 16", "null or a multiple of 16"),
    ("voices.directory=voices", "must be null: this build has no stored voices", None),
]


@pytest.mark.parametrize(("assignment", "message", "limit"), REFUSED)
def test_what_the_build_cannot_do_is_refused_by_key(
    assignment: str, message: str, limit: str | None
) -> None:
    key = assignment.partition("=")[0]
    with pytest.raises(InvalidConfig) as caught:
        check_supported(deploy_of(assignment))
    assert message in caught.value.message and key in caught.value.message
    assert (caught.value.param, caught.value.limit) == (key, limit)
