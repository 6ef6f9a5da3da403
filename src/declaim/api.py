"""The public Python face: text in, samples out."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from declaim.codec.reader import find_codec, open_codec
from declaim.codec.stream import Decoder
from declaim.config.checkpoint import load_model_config
from declaim.config.schema import FrameStage
from declaim.contracts.request import FinishReason, FrameRequest
from declaim.engine.frames import fresh_seed, load_frame_engine
from declaim.text.prompt import PromptBuilder
from declaim.text.tokenizer import load_tokenizer


@dataclass(frozen=True)
class Speech:
    """What was spoken.

    samples float32 [frames * hop] in [-1, 1] at `rate` Hz; frames int64 [frames, 1 + Q].
    reason: stop (the model ended) or length (max_frames was reached). seed: repeats it exactly.
    """

    samples: NDArray[np.float32]
    rate: int
    frames: NDArray[np.int64]
    reason: FinishReason
    seed: int


def say(
    text: str,
    *,
    model: Path,
    codec: Path | None = None,
    seed: int | None = None,
    max_frames: int | None = None,
) -> Speech:
    """Speak a text with the checkpoint's own sampling defaults.

    codec: a codec file or directory; the model directory's by default. seed: fresh without one.
    max_frames: by default the checkpoint's own, or what its context leaves.
    Raises InvalidRequest for text that cannot be spoken, InvalidCheckpoint for files that do not
    hold a model or codec, NotFound for paths that are not there.
    """
    config = load_model_config(model)
    builder = PromptBuilder(load_tokenizer(model, config), config)
    stored = open_codec(find_codec(codec, model), model_codebooks=config.tower.num_codebooks)
    decoder = Decoder(stored.config, stored.weights(decode_only=True))
    chosen = fresh_seed() if seed is None else seed
    prompt = builder.build(text)
    room = max(config.context - len(prompt.rows), 1)
    request = FrameRequest(
        id="say",
        prompt=prompt,
        sampling=config.generation.sampling,
        seed=chosen,
        max_frames=min(config.generation.max_new_tokens, room)
        if max_frames is None
        else max_frames,
    )
    rows = len(request.prompt.rows) + request.max_frames
    stage = FrameStage(max_num_seqs=1, max_model_len=min(rows, config.context))
    engine = load_frame_engine(model, stage, config)
    engine.submit(request)
    for _ in engine.steps():
        pass
    outcome = engine.outcome(request.id)
    frames = outcome.frames.astype(np.int64)
    samples = decoder.decode(frames[:, 1:].T)
    return Speech(samples, stored.config.sample_rate, frames, outcome.reason, chosen)
