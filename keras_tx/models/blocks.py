"""A model's stack of blocks, from numbers, a template or a list of templates."""

from keras_tx.configurable import misplaced
from keras_tx.layers.normalization import make_normalization
from keras_tx.layers.parts import clone
from keras_tx.layers.transformer_block import TransformerBlock


class BlockStack:
    """Mixin for a model with `num_layers` clones of its argument `block`.

    Without a `block` one is made from numbers: whatever argument the model shares with
    `TransformerBlock`, by the same name, is handed to it.
    """

    @classmethod
    def _block_arguments(cls) -> list[str]:
        of_block = TransformerBlock._constructor_arguments()
        # The model's own `position` is that of the embeddings.
        return [
            name for name in cls._inherited_arguments() if name in of_block.keys() - {"position"}
        ]

    @classmethod
    def _without_effect(cls, arguments):
        if arguments.get("block") is None:
            return TransformerBlock._without_effect(arguments)
        names = [name for name in cls._block_arguments() if name != "dropout"]  # of the embeddings
        return misplaced(names, "blocks made from numbers", "the `block`")

    def _make_blocks(self, block, **fixed):
        """Makes `blocks` and `output_norm`; `fixed` are other arguments of a block of numbers."""
        if block is None:
            numbers = {name: self._argument(name) for name in self._block_arguments()}
            for name in TransformerBlock._without_effect(numbers):
                del numbers[name]
            numbers["num_heads"] = default_num_heads(numbers["num_heads"], self.hidden_dim)
            block = TransformerBlock(**numbers, **fixed)
        self.blocks = make_blocks(block, self.num_layers, self.hidden_dim, self.dtype_policy)
        last = self.blocks[-1]
        self.output_norm = None  # what the last block has normalized is not normalized again
        if last.normalization_order != "post":
            self.output_norm = self._make_norm_of(last, "output_norm")

    def _make_norm_of(self, block, name: str):
        """A normalization of the block's kind."""
        return make_normalization(
            block.normalization, name, block.layer_norm_epsilon, self.dtype_policy, self.hidden_dim
        )


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


def scale_residual_outputs(blocks: list):
    """Divides the kernels that end the residual branches by the root of their number.

    Radford et al. 2019, section 2.3. A part's last projection is called `output_dense`, or
    `output_kernel` when it is a bank of experts.
    """
    branches = [part for block in blocks for part in (block.attention, block.feed_forward)]
    for part in branches:
        ends = ("/output_dense/kernel", "/output_kernel")
        kernels = [weight for weight in part.weights if weight.path.endswith(ends)]
        if not kernels:
            raise ValueError(
                "depth_scaled_initialization=True scales the kernels of what is called "
                f"`output_dense` in the parts of a block. Received: {part.name}, which has none"
            )
        for kernel in kernels:
            kernel.assign(kernel / len(branches) ** 0.5)
