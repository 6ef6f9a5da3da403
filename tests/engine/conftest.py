"""Whole engines on `micro`, started in the test's own event loop."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from declaim.config.schema import Deploy
from declaim.engine.engine import Engine
from declaim.engine.load import load_engine

RunningEngine = Callable[..., AbstractAsyncContextManager[Engine]]


@pytest.fixture
def running(checkpoint: Callable[[str], Path]) -> RunningEngine:
    """`async with running(...) as engine`; options are the frame stage's, `limits` the deploy's.

    before_start is called with the engine before its threads start.
    """

    @asynccontextmanager
    async def run(
        before_start: Callable[[Engine], None] = lambda engine: None,
        codec_streams: int = 8,
        limits: dict[str, Any] | None = None,
        **options: Any,
    ) -> AsyncIterator[Engine]:
        base = Deploy()
        deploy = base.replaced(
            stages=(
                base.frames.replaced(**{"max_model_len": 512, "cudagraph_mode": "NONE", **options}),
                base.codec.replaced(max_num_seqs=codec_streams),
            ),
            limits=base.limits.replaced(**(limits or {})),
        )
        engine, warnings = load_engine(deploy, checkpoint("micro"))
        assert not warnings
        before_start(engine)
        engine.start()
        try:
            yield engine
        finally:
            await engine.close()

    return run
