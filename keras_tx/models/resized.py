"""A vision transformer's weights in a model for images of another size."""

import keras
from keras import ops

from keras_tx.layers.axial_rotary_encoding import AxialRotaryEncoding
from keras_tx.layers.patch_embedding import patch_pair
from keras_tx.ops.position_grid import resize_positions


def resized(vit, image_size, interpolation: str = "bicubic", antialias: bool = False):
    """A model like `vit` for images of `image_size`, with its weights.

    Learned positions are resized; axial rotary encodings turn by the new grid; sinusoids are made
    anew.
    """
    config = {**vit.get_config(), "image_size": image_size}
    grid, new_grid = (
        vit.patch_embedding.grid((None, *patch_pair(size), vit.num_channels))
        for size in (vit.image_size, image_size)
    )
    _set_grids(config, list(new_grid))
    other = type(vit).from_config(config)
    learned = vit.position_encoding.embeddings if vit.position == "learned" else None
    for old, new in zip(vit.weights, other.weights, strict=True):
        if old is learned:
            prefix = old.shape[0] - grid[0] * grid[1]
            old = resize_positions(
                ops.convert_to_numpy(old),
                grid,
                new_grid,
                num_prefix_tokens=prefix,
                interpolation=interpolation,
                antialias=antialias,
            )
        new.assign(old)
    return other


def _set_grids(config, grid: list[int]):
    """Gives every axial rotary encoding in a model's configuration another grid."""
    name = keras.saving.get_registered_name(AxialRotaryEncoding)
    if isinstance(config, dict):
        if config.get("registered_name") == name:
            config["config"]["grid"] = grid
        for value in config.values():
            _set_grids(value, grid)
    elif isinstance(config, list):
        for item in config:
            _set_grids(item, grid)
