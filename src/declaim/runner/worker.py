"""Builds a runner on a platform: threads, weights, model and state, in this order."""

from pathlib import Path

import torch

from declaim.checkpoint.random import random_weights
from declaim.checkpoint.reader import load_weights
from declaim.config.model import ModelConfig
from declaim.config.schema import FrameStage
from declaim.contracts.errors import OutOfMemory
from declaim.model.frame_lm import FrameLM
from declaim.parallel.ranks import Ranks
from declaim.platforms.base import Platform
from declaim.runner.batch import Batch
from declaim.runner.graphs import GraphMode, Graphs, capture_sizes, resolve_mode
from declaim.runner.runner import Runner
from declaim.sampling.sampler import FrameSampler
from declaim.state.device import allocate
from declaim.state.layout import StateLayout


def build_runner(
    directory: Path, config: ModelConfig, stage: FrameStage, platform: Platform
) -> Runner:
    """Load a checkpoint (or make random weights) and allocate all memory once.

    Graphs are not captured yet; a mode that the platform lacks falls back, as the runner's graphs
    say. Raises InvalidCheckpoint for files that do not hold the configured network, InvalidConfig
    and OutOfMemory for a stage that does not fit the platform.
    """
    platform.set_threads(stage.threads)
    mode, warning = resolve_mode(
        GraphMode(stage.cudagraph_mode), platform.graph_modes, platform.name
    )
    sizes = capture_sizes(stage)
    recorder = platform.recorder(platform.op_table(Ranks()))
    ops = recorder.ops
    layout = platform.layout(config, stage)
    with torch.no_grad():
        if stage.load_format == "random":
            weights = random_weights(config, ops, stage.seed)
        else:
            weights = load_weights(directory, config, ops)
        candidates = torch.tensor(config.candidates, dtype=torch.int32, device=platform.device)
        model = FrameLM(config, ops, weights, FrameSampler(config, ops, candidates))
        context = min(stage.max_model_len, config.context)
        try:
            state = allocate(config, layout, platform.device)
            batch = Batch(config, platform, layout, stage.max_num_batched_tokens, context)
        except (RuntimeError, MemoryError, ValueError) as error:  # torch and numpy, for no memory
            raise _too_little_memory(stage, layout, config) from error
    graphs = Graphs(model, state, recorder, mode, sizes, warning)
    return Runner(config, model, state, batch, graphs)


def _too_little_memory(stage: FrameStage, layout: StateLayout, config: ModelConfig) -> OutOfMemory:
    streams = layout.slots * layout.recurrent_bytes(config)
    pages = layout.pages * layout.page_bytes(config)
    return OutOfMemory(
        f"the memory does not hold max_num_seqs = {stage.max_num_seqs} streams "
        f"({streams:,} bytes), {layout.pages:,} pages ({pages:,} bytes) and steps of "
        f"max_num_batched_tokens = {stage.max_num_batched_tokens} rows",
        param="max_num_seqs",
        value=stage.max_num_seqs,
    )
