import keras
import numpy as np
from keras import ops

from keras_tx.layers.layer import Layer
from keras_tx.layers.rotary_scaling import RotaryScaling
from keras_tx.ops.rotary import rotary_angles, rotary_frequencies, rotate


@keras.saving.register_keras_serializable(package="keras_tx")
class RotaryEncoding(Layer):
    """Rotary position encoding of queries and keys.

    Each pair of features is turned by `position * max_wavelength ** (-2 i / H)`, so that the
    product of a query and a key depends on their distance alone. Used as
    `MultiHeadSelfAttention(..., position=RotaryEncoding())`.

    Args:
        max_wavelength: Base of the geometric progression of wavelengths.
        scaling: How the frequencies are changed for sequences longer than in training:
            `LinearScaling`, `DynamicScaling`, `YarnScaling`, `LongRopeScaling`, `Llama3Scaling` or
            None.
        rotary_dim: Only the first `rotary_dim` features of a head are turned, and H in the formula
            is `rotary_dim`; the others stay. Default: all.
        interleaved: Whether a pair is features (2 i, 2 i + 1), as in the paper, or (i, i + H / 2),
            as in GPT-NeoX and Llama.

    Call arguments:
        x: (..., T, H), H even.
        positions: Integers (T,), or (B, T) for x (B, N, T, H). Default: 0, 1, ...
        lengths: An integer or integers (B,), the length that each row has or will have, for
            scalings that depend on it (dynamic, LongRoPE). It must stay the same in all calls of
            one generation, for cached keys were turned by it. Default: a length of training, where
            dynamic scaling changes nothing and LongRoPE takes its short factors.

    Returns:
        Tensor like x.

    Raises:
        ValueError: If the features turned are odd in number, or more than H.

    Precision: Frequencies are float64, unless they depend on a tensor of lengths. Angles and
        rotation are float32.

    Example:
        >>> import numpy as np
        >>> x = np.ones((2, 3, 5, 8), "float32")
        >>> RotaryEncoding()(x).shape
        (2, 3, 5, 8)
        >>> RotaryEncoding(scaling=DynamicScaling(4.0, 4096))(x, lengths=np.array([5, 8192])).shape
        (2, 3, 5, 8)

    Reference:
        Su et al. 2021, "RoFormer", Eq. 34.
    """

    def __init__(
        self,
        max_wavelength: float = 10000.0,
        *,
        scaling: RotaryScaling | None = None,
        rotary_dim: int | None = None,
        interleaved: bool = False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if max_wavelength <= 0:
            raise ValueError(f"`max_wavelength` must be positive. Received: {max_wavelength}")
        if scaling is not None and not isinstance(scaling, RotaryScaling):
            raise ValueError(
                "`scaling` must be None or an object such as LinearScaling(factor). "
                f"Received: {scaling!r}"
            )
        if rotary_dim is not None and (
            not isinstance(rotary_dim, int) or rotary_dim < 2 or rotary_dim % 2
        ):
            raise ValueError(
                f"`rotary_dim` must be a positive even integer or None. Received: {rotary_dim!r}"
            )
        self.max_wavelength = max_wavelength
        self.scaling = scaling
        self.rotary_dim = rotary_dim
        self.interleaved = interleaved

    @property
    def depends_on_length(self) -> bool:
        return self.scaling is not None and self.scaling.depends_on_length

    def build(self, x_shape):
        if x_shape[-1] is None or (self.rotary_dim or x_shape[-1]) % 2:
            raise ValueError(
                "Rotary encoding turns pairs of features: the last dimension must be known and "
                f"even, or `rotary_dim` given. Received: shape {tuple(x_shape)}"
            )
        if (self.rotary_dim or 0) > x_shape[-1]:
            raise ValueError(
                f"`rotary_dim` must be at most the head's features. Received: {self.rotary_dim}, "
                f"and {x_shape[-1]} features"
            )
        self._frequencies(x_shape[-1])  # a scaling that does not fit says so now

    def _frequencies(self, head_dim: int, lengths=None):
        dim = self.rotary_dim or head_dim
        if self.scaling is None:
            return rotary_frequencies(dim, self.max_wavelength)
        return self.scaling.frequencies(dim, self.max_wavelength, lengths)

    def call(self, x, positions=None, lengths=None):
        if positions is None:
            positions = ops.arange(ops.shape(x)[-2], dtype="int32")
        if lengths is not None and not isinstance(lengths, (int, np.integer)):
            lengths = ops.convert_to_tensor(lengths, "int32")
        frequencies = self._frequencies(x.shape[-1], lengths)  # (H/2,) or (B, H/2)
        angles = rotary_angles(positions, frequencies)  # (T, H/2) or (B, T, H/2)
        if len(angles.shape) == 3:
            angles = angles[:, None]
        scale = 1.0 if self.scaling is None else self.scaling.attention_factor
        return rotate(x, angles, self.interleaved, scale)

    def compute_output_shape(self, x_shape):
        return tuple(x_shape)
