"""A model's stack of blocks, from a template or a list of templates."""

from keras_tx.layers.layer import clone
from keras_tx.layers.normalization import make_normalization
from keras_tx.layers.transformer_block import TransformerBlock


def check_stack(num_layers: int | None, hidden_dim: int | None):
    """Raises ValueError unless a model's depth and width are positive."""
    if not num_layers or not hidden_dim or num_layers < 1 or hidden_dim < 1:
        raise ValueError(
            "`num_layers` and `hidden_dim` must be positive. "
            f"Received: num_layers={num_layers}, hidden_dim={hidden_dim}"
        )


def default_num_heads(num_heads: int | None, hidden_dim: int) -> int:
    """The number given, or one head for every 64 features."""
    return max(1, hidden_dim // 64) if num_heads is None else num_heads


def make_blocks(template, num_layers: int, hidden_dim: int, dtype) -> list:
    """`num_layers` built clones, named block_0, block_1, ...

    Args:
        template: A `TransformerBlock`, or a list of `num_layers` of them.
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
        if not isinstance(layer, TransformerBlock):
            raise ValueError(
                f"`block` must be a TransformerBlock or a list of them. Received: {layer!r}"
            )
        if layer.cross_attention is not None:
            raise ValueError(
                f"A `block` with cross-attention needs a context, which this model has not: pass "
                f"one without. Received: {layer.name} with {layer.cross_attention.name}"
            )
    blocks = [clone(layer, f"block_{index}", dtype) for index, layer in enumerate(templates)]
    for block in blocks:
        block.build((None, None, hidden_dim))
    return blocks


def make_output_norm(blocks: list, dtype, hidden_dim: int):
    """What normalizes the last block's output, of that block's kind; None if it has done so."""
    last = blocks[-1]
    if last.normalization_order == "post":
        return None
    return make_normalization(
        last.normalization, "output_norm", last.layer_norm_epsilon, dtype, hidden_dim
    )
