import keras
from keras import ops

from keras_tx.layers.layer import Layer
from keras_tx.layers.positions import check_positions
from keras_tx.ops.rotary import axial_angles, rotary_frequencies, rotate


@keras.saving.register_keras_serializable(package="keras_tx")
class AxialRotaryEncoding(Layer):
    """Two-dimensional rotary position encoding of queries and keys, for the patches of images.

    Half of a head's pairs of features are turned by the patch's row, half by its column, each by
    `place * max_wavelength ** (-4 i / H)`, so that the product of a query and a key depends on
    their distances in both directions alone. Used as
    `MultiHeadSelfAttention(..., position=AxialRotaryEncoding((14, 14), num_prefix_tokens=1))`.

    Args:
        grid: Rows and columns of patches.
        max_wavelength: Base of the geometric progression of wavelengths.
        num_prefix_tokens: How many tokens stand before the patches, such as a class token; they
            are not turned.
        interleaved: Whether a pair is features (2 i, 2 i + 1), so that rows turn the first half of
            the features, as in EVA-02, or (i, i + H / 2), as in Qwen2-VL and DINOv3.

    Call arguments:
        x: (B, N, P, H), the prefix and the patches row by row, H divisible by 4.
        positions: Integers (B, P), the places of the tokens in that order where they are not all
            there. Default, and with (P,): all of them.
        lengths: Not used.

    Returns:
        Tensor like x.

    Raises:
        ValueError: If H is not divisible by 4, or P is known and not the prefix and the grid.

    Precision: Angles and rotation are float32.

    Example:
        >>> import numpy as np
        >>> AxialRotaryEncoding((2, 3), num_prefix_tokens=1)(np.ones((2, 5, 7, 8), "float32")).shape
        (2, 5, 7, 8)

    Reference:
        Heo et al. 2024, "Rotary Position Embedding for Vision Transformer", Eq. 6-8 (axial).
    """

    def __init__(
        self,
        grid: tuple[int, int],
        max_wavelength: float = 100.0,
        *,
        num_prefix_tokens: int = 0,
        interleaved: bool = False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if len(grid) != 2 or not all(isinstance(side, int) and side > 0 for side in grid):
            raise ValueError(
                f"`grid` must be a pair of positive integers, rows and columns. Received: {grid!r}"
            )
        if max_wavelength <= 0:
            raise ValueError(f"`max_wavelength` must be positive. Received: {max_wavelength}")
        if not isinstance(num_prefix_tokens, int) or num_prefix_tokens < 0:
            raise ValueError(
                f"`num_prefix_tokens` must be an integer, at least 0. Received: {num_prefix_tokens}"
            )
        self.grid = tuple(grid)
        self.max_wavelength = max_wavelength
        self.num_prefix_tokens = num_prefix_tokens
        self.interleaved = interleaved

    def build(self, x_shape):
        if x_shape[-1] is None or x_shape[-1] % 4:
            raise ValueError(
                "Axial rotary encoding turns pairs of features by rows and by columns: the last "
                f"dimension must be known and divisible by 4. Received: shape {tuple(x_shape)}"
            )

    def call(self, x, positions=None, lengths=None):
        if positions is None:
            positions = ops.arange(ops.shape(x)[-2], dtype="int32")
        sizes = f"grid={self.grid}, num_prefix_tokens={self.num_prefix_tokens}"
        num_places = self.num_prefix_tokens + self.grid[0] * self.grid[1]
        if len(positions.shape) == 2:
            check_positions(positions, num_places, sizes)
        elif isinstance(x.shape[-2], int) and x.shape[-2] != num_places:
            raise ValueError(
                f"x must have {num_places} places ({sizes}), or `positions` (batch, places) say "
                f"which of them. Received: {x.shape[-2]} places"
            )
        frequencies = rotary_frequencies(x.shape[-1] // 2, self.max_wavelength)  # (H/4,)
        angles = axial_angles(positions, self.grid[1], frequencies, self.num_prefix_tokens)
        if len(angles.shape) == 3:
            angles = angles[:, None]
        return rotate(x, angles, self.interleaved)

    def compute_output_shape(self, x_shape):
        return tuple(x_shape)
