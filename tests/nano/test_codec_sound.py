"""A random checkpoint's codec loads as any other and turns codes into audible, unclipped noise."""

from pathlib import Path

import numpy as np
import pytest
import torch

from declaim.codec.reader import load_decoder
from declaim.config.checkpoint import load_model_config
from declaim.contracts.errors import InvalidCheckpoint
from declaim.nano.make import make_checkpoint
from declaim.nano.shapes import SHAPES


@pytest.mark.parametrize(("name", "rate", "hop"), [("micro", 22050, 1024), ("tiny", 44100, 2048)])
def test_sound(tmp_path: Path, name: str, rate: int, hop: int) -> None:
    before = torch.get_rng_state()
    make_checkpoint(name, 3, tmp_path)
    codebooks = load_model_config(tmp_path).tower.num_codebooks
    decoder = load_decoder(None, tmp_path, codebooks)
    assert torch.equal(torch.get_rng_state(), before)
    assert (decoder.config.sample_rate, decoder.config.hop) == (rate, hop)
    highest = SHAPES[name].codebook_size
    codes = np.random.default_rng(0).integers(0, highest, (codebooks, 12))
    samples = decoder.decode(codes)
    assert samples.shape == (12 * hop,)
    assert np.isfinite(samples).all()
    assert 0.05 < samples.std() < 0.5
    assert np.abs(samples).max() < 0.99
    loudness = samples.reshape(12, hop).std(1)
    assert loudness.min() > 0.25 * loudness.max()
    assert np.abs(decoder.decode(codes[:, ::-1]) - samples).max() > 0.05


def test_residual_books_narrower_than_the_models_codes(tmp_path: Path) -> None:
    """A code past a residual book means its last entry; the semantic book has them all."""
    make_checkpoint("small", 0, tmp_path)
    decoder = load_decoder(None, tmp_path, 10)
    config = decoder.config
    assert (config.semantic_codebook_size, config.codebook_size) == (1024, 256)
    codes = np.full((10, 2), 1023)
    clamped = codes.copy()
    clamped[1:] = 255
    assert np.array_equal(decoder.decode(codes), decoder.decode(clamped))
    clamped[0] = 255
    assert not np.allclose(decoder.decode(codes), decoder.decode(clamped), atol=1e-3)


def test_without_a_codec(tmp_path: Path) -> None:
    make_checkpoint("micro", 0, tmp_path, codec=False)
    with pytest.raises(InvalidCheckpoint, match="has no codec .*; pass --codec"):
        load_decoder(None, tmp_path, 4)
