"""A ViT's weights in a model for images of another size."""

import numpy as np
import pytest
from keras import ops

from keras_tx import layers
from keras_tx.ops.position_grid import resize_positions
from tests.models import tools

GRID, NEW_GRID = (3, 3), (2, 5)  # of patches of 2 x 3 pixels


def table(vit):
    return ops.convert_to_numpy(vit.position_encoding.embeddings)


def images(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (2, height, width, 2), "uint8")


def logits(vit, images):
    return ops.convert_to_numpy(vit(images))


@pytest.mark.parametrize("pooling", ["class_token", "mean"])
@pytest.mark.parametrize(
    "options", [{}, {"interpolation": "bilinear", "antialias": True}], ids=["default", "options"]
)
def test_learned_positions_are_resized_and_the_rest_stays(pooling, options):
    vit = tools.make_vit(pooling=pooling)
    other = vit.resized((4, 15), **options)
    assert tuple(other.image_size) == (4, 15) and vit.image_size == (6, 9)
    prefix = int(pooling == "class_token")
    expected = resize_positions(table(vit), GRID, NEW_GRID, num_prefix_tokens=prefix, **options)
    np.testing.assert_allclose(table(other), expected, atol=1e-6)
    for old, new in zip(vit.weights, other.weights, strict=True):
        if old is not vit.position_encoding.embeddings:
            np.testing.assert_array_equal(*map(ops.convert_to_numpy, (old, new)))
    assert logits(other, images(4, 15)).shape == (2, 5)


def test_there_and_back_is_the_same_model():
    vit = tools.make_vit()
    np.testing.assert_allclose(
        logits(vit.resized((6, 9)), images(6, 9)), logits(vit, images(6, 9)), atol=1e-6
    )


def test_sinusoids_are_made_anew():
    vit = tools.make_vit(position="sinusoidal")
    other = vit.resized((4, 15))
    assert logits(other, images(4, 15)).shape == (2, 5)
    np.testing.assert_array_equal(
        logits(other.resized((6, 9)), images(6, 9)), logits(vit, images(6, 9))
    )


def test_axial_rotary_encodings_turn_by_the_new_grid():
    def make(image_size, grid):
        blocks = [
            layers.TransformerBlock(
                2, 5, position=layers.AxialRotaryEncoding(grid, num_prefix_tokens=1)
            )
            for _ in range(2)
        ]
        return tools.make_vit(
            image_size=image_size,
            position=None,
            block=blocks,
            num_heads=None,
            intermediate_dim=None,
        )

    vit = make((6, 9), GRID)
    other, expected = vit.resized((4, 15)), make((4, 15), NEW_GRID)
    expected.set_weights(vit.get_weights())
    assert other.blocks[1].attention.position.grid == NEW_GRID
    np.testing.assert_allclose(
        logits(other, images(4, 15)), logits(expected, images(4, 15)), atol=1e-6
    )


def test_sizes_must_be_multiples_of_the_patch():
    with pytest.raises(ValueError, match=r"multiples of patch_size=\(2, 3\). Received: 4 x 14"):
        tools.make_vit().resized((4, 14))
