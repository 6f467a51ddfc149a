import keras
from keras import ops

from keras_tx.layers.layer import Layer
from keras_tx.layers.parts import dense


@keras.saving.register_keras_serializable(package="keras_tx")
class PatchEmbedding(Layer):
    """Cuts images into patches and projects each to a vector: `E x_p + b`.

    Args:
        patch_size: Height and width of a patch in pixels, an integer or a pair.
        hidden_dim: Features D of a patch's vector.
        use_bias: Whether the projection has a bias.
        kernel_initializer: Initializer of the projection.

    Call arguments:
        x: Images (B, height, width, C), floating.

    Returns:
        (B, P, D) in the compute dtype, patches row by row.

    Raises:
        ValueError: If the height or width is no multiple of the patch's, or is unknown.

    Example:
        >>> import numpy as np
        >>> PatchEmbedding(4, 16)(np.ones((2, 8, 12, 3), "float32")).shape
        (2, 6, 16)

    Reference:
        Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words", Eq. 1.
    """

    def __init__(
        self,
        patch_size: int | tuple[int, int],
        hidden_dim: int,
        *,
        use_bias: bool = True,
        kernel_initializer: str | keras.initializers.Initializer = "lecun_normal",
        **kwargs,
    ):
        super().__init__(**kwargs)
        sides = patch_pair(patch_size)
        if len(sides) != 2 or min(sides) < 1 or hidden_dim < 1:
            raise ValueError(
                "`patch_size` must be a positive integer or a pair, `hidden_dim` positive. "
                f"Received: patch_size={patch_size}, hidden_dim={hidden_dim}"
            )
        self.patch_size = patch_size
        self.hidden_dim = hidden_dim
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, x_shape):
        self.grid(x_shape)
        rows, columns = patch_pair(self.patch_size)
        self.projection = dense(self, self.hidden_dim, "projection", rows * columns * x_shape[-1])

    def grid(self, x_shape) -> tuple[int, int]:
        """Rows and columns of patches in images of this shape."""
        if len(x_shape) != 4 or None in x_shape[1:]:
            raise ValueError(
                "Images must be (batch, height, width, channels), all but the batch known. "
                f"Received: shape {tuple(x_shape)}"
            )
        rows, columns = patch_pair(self.patch_size)
        if x_shape[1] % rows or x_shape[2] % columns:
            raise ValueError(
                f"Height and width must be multiples of patch_size={self.patch_size}. Received: "
                f"{x_shape[1]} x {x_shape[2]}. Resize or pad the images, or choose another patch."
            )
        return x_shape[1] // rows, x_shape[2] // columns

    def call(self, x):
        height, width = self.grid(x.shape)
        rows, columns = patch_pair(self.patch_size)
        channels = x.shape[-1]
        x = ops.reshape(x, (-1, height, rows, width, columns, channels))
        x = ops.transpose(x, (0, 1, 3, 2, 4, 5))
        return self.projection(ops.reshape(x, (-1, height * width, rows * columns * channels)))

    def compute_output_shape(self, x_shape):
        height, width = self.grid(x_shape)
        return (x_shape[0], height * width, self.hidden_dim)


def patch_pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else tuple(size)
