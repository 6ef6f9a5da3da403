"""Whether this build can do what a deploy asks for; checked once, when an engine starts.

Knows no checkpoint: what depends on one is checked by the platform's layout.
"""

from collections.abc import Iterator

from declaim.config.schema import CodecStage, Deploy, FrameStage
from declaim.contracts.errors import InvalidConfig
from declaim.platforms.cpu.platform import BLOCK

RUNNERS = ("frames", "codec")
"""What each stage takes, by stage_id."""

PLATFORMS = ("cpu",)
DTYPES = ("auto", "float32")

Demand = tuple[str, object, bool, str]
"""Key, value, whether the CPU can do it, and what it can."""


def check_supported(deploy: Deploy) -> None:
    """Raises InvalidConfig for a value that asks for what this build cannot do."""
    stages: tuple[FrameStage | CodecStage, ...] = deploy.stages
    for stage, runner in zip(stages, RUNNERS, strict=True):
        name = f"stages.{stage.stage_id}"
        _check_runner(name, stage, runner)
        for key, value, possible, accepted in _demands(stage):
            if not possible:
                raise _unsupported(f"{name}.{key}", value, accepted, stage.platform)
    if deploy.voices.directory is not None:
        raise InvalidConfig(
            f"voices.directory must be null: this build has no stored voices; "
            f"found {deploy.voices.directory!r}",
            param="voices.directory",
            limit=None,
            value=deploy.voices.directory,
        )


def _check_runner(name: str, stage: FrameStage | CodecStage, runner: str) -> None:
    if stage.runner != runner:
        raise InvalidConfig(
            f"stage {stage.stage_id} cannot take runner {stage.runner}: {name}.runner must be "
            f"{runner}",
            param=f"{name}.runner",
            limit=runner,
            value=stage.runner,
        )
    if stage.platform not in PLATFORMS:
        raise InvalidConfig(
            f"platform {stage.platform} cannot take runner {stage.runner} in this build: "
            f"{name}.platform must be {' or '.join(PLATFORMS)}",
            param=f"{name}.platform",
            limit=", ".join(PLATFORMS),
            value=stage.platform,
        )


def _demands(stage: FrameStage | CodecStage) -> Iterator[Demand]:
    yield "devices", list(stage.devices), stage.devices == (0,), "[0]"
    yield "dtype", stage.dtype, stage.dtype in DTYPES, " or ".join(DTYPES)
    if isinstance(stage, CodecStage):
        return
    size, page = stage.tensor_parallel_size, stage.page_size
    yield "tensor_parallel_size", size, size == 1, "1"
    parallel = stage.enable_expert_parallel
    yield "enable_expert_parallel", parallel, not parallel, "false"
    yield "page_size", page, page is None or page % BLOCK == 0, f"null or a multiple of {BLOCK}"


def _unsupported(key: str, value: object, accepted: str, platform: str) -> InvalidConfig:
    found = str(value).lower() if isinstance(value, bool) else value
    return InvalidConfig(
        f"{key} must be {accepted} on platform {platform} in this build; found {found}",
        param=key,
        limit=accepted,
        value=value,
    )
