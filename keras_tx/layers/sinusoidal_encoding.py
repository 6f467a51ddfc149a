import keras
from keras import ops

from keras_tx.layers.layer import Layer, known_features
from keras_tx.ops.sinusoid import sinusoid

MODES = ("add", "concat")


@keras.saving.register_keras_serializable(package="keras_tx")
class SinusoidalEncoding(Layer):
    """Adds or appends sines and cosines of the positions.

    `p[t, 2 i] = sin(t / max_wavelength ** (2 i / D))`, `p[t, 2 i + 1] = cos(...)`.

    Args:
        mode: "add" gives x + p; "concat" gives [x; p], so that content and position keep
            features of their own.
        encoding_dim: Number of features of p in mode "concat". Default: those of x.
        max_wavelength: Base of the geometric progression of wavelengths.

    Call arguments:
        x: (B, T, D).
        positions: Integers (T,) or (B, T). Default: 0, 1, ...

    Returns:
        (B, T, D), or (B, T, D + encoding_dim) in mode "concat", in the compute dtype.

    Raises:
        ValueError: If `mode` is unknown, or `encoding_dim` is given in mode "add".

    Precision: p is float32 and is cast once: neighbouring positions stay distinct in half
    precision as far as the sum allows.

    Example:
        >>> import numpy as np
        >>> SinusoidalEncoding(mode="concat", encoding_dim=4)(np.ones((2, 5, 8), "float32")).shape
        (2, 5, 12)

    Reference:
        Vaswani et al. 2017, "Attention Is All You Need", section 3.5.
    """

    def __init__(
        self,
        mode: str = "add",
        *,
        encoding_dim: int | None = None,
        max_wavelength: float = 10000.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if mode not in MODES:
            raise ValueError(f"`mode` must be one of {MODES}. Received: {mode!r}")
        if mode == "add" and encoding_dim is not None:
            raise ValueError(
                '`encoding_dim` is for mode="concat"; in mode "add" it is that of x. '
                f"Received: {encoding_dim}"
            )
        if encoding_dim is not None and encoding_dim < 1:
            raise ValueError(f"`encoding_dim` must be positive. Received: {encoding_dim}")
        self.mode = mode
        self.encoding_dim = encoding_dim
        self.max_wavelength = max_wavelength

    def build(self, x_shape):
        known_features("x", x_shape)

    def call(self, x, positions=None):
        if positions is None:
            positions = ops.arange(ops.shape(x)[1], dtype="int32")
        encoding = sinusoid(positions, self.encoding_dim or x.shape[-1], self.max_wavelength)
        if self.mode == "add":
            return ops.cast(ops.cast(x, "float32") + encoding, x.dtype)
        batch, length = ops.shape(x)[0], ops.shape(x)[1]
        encoding = ops.broadcast_to(encoding, (batch, length, encoding.shape[-1]))
        return ops.concatenate([x, ops.cast(encoding, x.dtype)], axis=-1)

    def compute_output_shape(self, x_shape):
        extra = 0 if self.mode == "add" else self.encoding_dim or x_shape[-1]
        return (*x_shape[:-1], x_shape[-1] + extra)
