"""Resized position tables against PyTorch, whose interpolation checkpoints were resized with."""

import numpy as np
import pytest

from keras_tx.ops.position_grid import resize_positions

GRID, PREFIX, D = (7, 5), 2, 3
TABLE = np.random.default_rng(0).standard_normal((PREFIX + 35, D)).astype("float32")


@pytest.mark.parametrize("antialias", [False, True], ids=["points", "areas"])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("new_grid", [(11, 13), (3, 2), (2, 11), (1, 1), (7, 5), (14, 5)])
def test_it_is_that_of_torch(new_grid, interpolation, antialias):
    import torch

    patches = torch.tensor(TABLE[PREFIX:]).reshape(1, *GRID, D).permute(0, 3, 1, 2)
    expected = torch.nn.functional.interpolate(
        patches, size=new_grid, mode=interpolation, align_corners=False, antialias=antialias
    )
    got = resize_positions(
        TABLE,
        GRID,
        new_grid,
        num_prefix_tokens=PREFIX,
        interpolation=interpolation,
        antialias=antialias,
    )
    assert got.dtype == "float32" and got.shape == (PREFIX + new_grid[0] * new_grid[1], D)
    np.testing.assert_array_equal(got[:PREFIX], TABLE[:PREFIX])
    expected = expected[0].permute(1, 2, 0).reshape(-1, D).numpy()
    np.testing.assert_allclose(got[PREFIX:], expected, rtol=0, atol=2e-6)


def test_it_is_that_of_vit():
    import torch
    import transformers
    from transformers.models.vit.modeling_vit import ViTEmbeddings

    config = transformers.ViTConfig(hidden_size=D, image_size=12, patch_size=2)
    embeddings = ViTEmbeddings(config)
    table = np.random.default_rng(1).standard_normal((1, 37, D)).astype("float32")
    embeddings.position_embeddings.data = torch.tensor(table)
    with torch.no_grad():
        expected = embeddings.interpolate_pos_encoding(torch.zeros(1, 1 + 5 * 11, D), 10, 22)
    got = resize_positions(table[0], (6, 6), (5, 11), num_prefix_tokens=1)
    np.testing.assert_allclose(got, expected[0].numpy(), rtol=0, atol=2e-6)


def test_mistakes():
    with pytest.raises(ValueError, match="`interpolation` must be one of.*Received: 'area'"):
        resize_positions(TABLE, GRID, (3, 2), num_prefix_tokens=PREFIX, interpolation="area")
    with pytest.raises(ValueError, match=r"must be \(35, features\).*=0. Received: .*\(37, 3\)"):
        resize_positions(TABLE, GRID, (3, 2))
