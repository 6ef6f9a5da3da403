"""Text to samples without threads or streams: every frame first, then one decoder call."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from declaim.codec.reader import load_decoder
from declaim.config.checkpoint import load_model_config
from declaim.config.schema import FrameStage
from declaim.contracts.request import FrameRequest, Reference
from declaim.engine.frames import load_frame_engine
from declaim.text.prompt import PromptBuilder
from declaim.text.tokenizer import load_tokenizer


@dataclass(frozen=True)
class Whole:
    """frames int64 [frames, 1 + Q], samples float32 [frames * hop]."""

    frames: NDArray[np.int64]
    samples: NDArray[np.float32]


def speak_whole(
    directory: Path, text: str, seed: int, max_frames: int, references: Sequence[Reference] = ()
) -> Whole:
    """One request alone, at the checkpoint's sampling defaults."""
    config = load_model_config(directory)
    prompt = PromptBuilder(load_tokenizer(directory, config), config).build(text, references)
    stage = FrameStage(max_num_seqs=1, max_model_len=len(prompt.rows) + max_frames)
    engine = load_frame_engine(directory, stage, config)
    engine.submit(FrameRequest("whole", prompt, config.generation.sampling, seed, max_frames))
    for _ in engine.steps():
        pass
    frames = engine.outcome("whole").frames.astype(np.int64)
    decoder = load_decoder(None, directory, config.tower.num_codebooks)
    return Whole(frames, decoder.decode(frames[:, 1:].T))
