"""A model's stack of blocks, from a template or a list of templates."""

import keras

from keras_tx.layers.layer import clone


def make_blocks(template, num_layers: int, hidden_dim: int, dtype) -> list:
    """`num_layers` built clones, named block_0, block_1, ...

    Args:
        template: A layer, or a list of `num_layers` of them.
        num_layers: How many.
        hidden_dim: Features of their input.
        dtype: Dtype policy of the model, and so of the blocks.
    """
    templates = list(template) if isinstance(template, (list, tuple)) else [template] * num_layers
    if len(templates) != num_layers:
        raise ValueError(
            f"A list of blocks must have num_layers={num_layers} of them. Received: "
            f"{len(templates)}"
        )
    for layer in templates:
        if not isinstance(layer, keras.layers.Layer):
            raise ValueError(f"`block` must be a layer or a list of layers. Received: {layer!r}")
    blocks = [clone(layer, f"block_{index}", dtype) for index, layer in enumerate(templates)]
    for block in blocks:
        block.build((None, None, hidden_dim))
    return blocks
