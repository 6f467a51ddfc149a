import keras
from keras import ops

from keras_tx.layers.layer import Layer
from keras_tx.ops.rotary import rotary_angles, rotate


@keras.saving.register_keras_serializable(package="keras_tx")
class RotaryEncoding(Layer):
    """Rotary position encoding of queries and keys.

    Each pair of features is turned by `position * max_wavelength ** (-2 i / H)`, so that the
    product of a query and a key depends on their distance alone. Used as
    `MultiHeadSelfAttention(..., position=RotaryEncoding())`.

    Args:
        max_wavelength: Base of the geometric progression of wavelengths.
        interleaved: Whether a pair is features (2 i, 2 i + 1), as in the paper, or (i, i + H / 2),
            as in GPT-NeoX and Llama.

    Call arguments:
        x: (..., T, H), H even.
        positions: Integers (T,), or (B, T) for x (B, N, T, H). Default: 0, 1, ...

    Returns:
        Tensor like x.

    Raises:
        ValueError: If H is odd.

    Precision: Angles and rotation are float32.

    Example:
        >>> import numpy as np
        >>> RotaryEncoding()(np.ones((2, 3, 5, 8), "float32")).shape
        (2, 3, 5, 8)

    Reference:
        Su et al. 2021, "RoFormer", Eq. 34.
    """

    def __init__(self, max_wavelength: float = 10000.0, *, interleaved: bool = False, **kwargs):
        super().__init__(**kwargs)
        if max_wavelength <= 0:
            raise ValueError(f"`max_wavelength` must be positive. Received: {max_wavelength}")
        self.max_wavelength = max_wavelength
        self.interleaved = interleaved

    def build(self, x_shape):
        if x_shape[-1] is None or x_shape[-1] % 2:
            raise ValueError(
                "Rotary encoding turns pairs of features: the last dimension must be known and "
                f"even. Received: shape {tuple(x_shape)}"
            )

    def call(self, x, positions=None):
        if positions is None:
            positions = ops.arange(ops.shape(x)[-2], dtype="int32")
        angles = rotary_angles(positions, x.shape[-1], self.max_wavelength)  # (T, H/2), (B, T, H/2)
        if len(angles.shape) == 3:
            angles = angles[:, None]
        return rotate(x, angles, self.interleaved)

    def compute_output_shape(self, x_shape):
        return tuple(x_shape)
