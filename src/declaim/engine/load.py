"""From a deploy and a model directory to an engine, everything loaded and allocated."""

from pathlib import Path

import torch

from declaim.codec.encoder import Encoder
from declaim.codec.reader import find_codec, open_codec
from declaim.codec.stream import Decoder
from declaim.config.checkpoint import load_model_config
from declaim.config.schema import Deploy
from declaim.contracts.engine import EngineInfo
from declaim.engine.admission import Admission
from declaim.engine.engine import Engine, EngineParts
from declaim.engine.frames import load_frame_engine
from declaim.platforms.cpu.platform import CpuPlatform
from declaim.platforms.support import check_supported
from declaim.text.prompt import PromptBuilder
from declaim.text.tokenizer import load_tokenizer


def load_engine(
    deploy: Deploy, model: Path, codec: Path | None = None
) -> tuple[Engine, tuple[str, ...]]:
    """An engine that is not started yet, and a warning for each value it could not honour.

    model: the checkpoint's directory, whatever the deploy's `model` says. codec: a codec file or
    directory; the model directory's by default.
    Raises NotFound, InvalidConfig, InvalidCheckpoint or OutOfMemory.
    """
    check_supported(deploy)
    config = load_model_config(model)
    stored = open_codec(find_codec(codec, model), model_codebooks=config.tower.num_codebooks)
    builder = PromptBuilder(load_tokenizer(model, config), config)
    frames = load_frame_engine(model, deploy.frames, config)
    weights = stored.weights()
    sampling = deploy.frames.default_sampling_params.over(config.generation.sampling)
    fits = frames.scheduler.limits
    limits = deploy.limits
    info = EngineInfo(
        model=model.name,
        rate=stored.config.sample_rate,
        hop=stored.config.hop,
        codebooks=config.tower.num_codebooks,
        codebook_size=config.tower.codebook_size,
        context=min(fits.max_model_len, fits.pages * fits.page_size),
        max_frames=config.generation.max_new_tokens,
        input_characters=limits.input_characters,
        reference_seconds=limits.reference_seconds,
        sampling=sampling,
        codec_fingerprint=stored.fingerprint(),
    )
    parts = EngineParts(
        info=info,
        admission=Admission(info, stored.config, builder),
        frames=frames,
        decoder=Decoder(stored.config, weights),
        encoder=Encoder(stored.config, weights),
        codec_rows=deploy.codec.max_num_seqs,
        queue=limits.queue,
        prepare_frames=lambda: CpuPlatform().set_threads(deploy.frames.threads),
        prepare_codec=lambda: torch.set_num_threads(deploy.codec.threads),
    )
    adjusted = frames.runner.graphs.warning
    return Engine(parts), () if adjusted is None else (adjusted,)
