import keras
from keras import ops

from keras_tx.layers.layer import Layer, known_features
from keras_tx.layers.parts import fresh
from keras_tx.layers.positions import check_positions


@keras.saving.register_keras_serializable(package="keras_tx")
class LearnedEncoding(Layer):
    """Adds a learned vector for each position: `x[t] + P[t]`.

    Args:
        max_sequence_length: Number of positions that have a vector.
        embeddings_initializer: Initializer of P.

    Call arguments:
        x: (B, T, D).
        positions: Integers (T,) or (B, T), below `max_sequence_length`. Default: 0, 1, ...

    Returns:
        (B, T, D) in the compute dtype.

    Raises:
        ValueError: If T, or a position, is known and beyond `max_sequence_length`.

    Example:
        >>> import numpy as np
        >>> LearnedEncoding(16)(np.ones((2, 5, 8), "float32")).shape
        (2, 5, 8)

    Reference:
        Gehring et al. 2017, "Convolutional Sequence to Sequence Learning", section 3.1.
    """

    def __init__(
        self,
        max_sequence_length: int,
        *,
        embeddings_initializer: str | keras.initializers.Initializer = "uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        if not isinstance(max_sequence_length, int) or max_sequence_length < 1:
            raise ValueError(
                f"`max_sequence_length` must be a positive integer. Received: {max_sequence_length}"
            )
        self.max_sequence_length = max_sequence_length
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    def build(self, x_shape):
        self.embeddings = self.add_weight(
            shape=(self.max_sequence_length, known_features("x", x_shape)),
            initializer=fresh(self.embeddings_initializer),
            name="embeddings",
        )

    def call(self, x, positions=None):
        limit, length = self.max_sequence_length, x.shape[1]
        if positions is not None:
            check_positions(positions, limit, f"max_sequence_length={limit}")
        elif isinstance(length, int) and length > limit:
            raise ValueError(
                f"The sequence must be at most max_sequence_length={limit} long. Received: length "
                f"{length}. Shorten it, or build the layer with more."
            )
        else:
            positions = ops.arange(ops.shape(x)[1], dtype="int32")
        vectors = ops.take(self.embeddings, ops.cast(positions, "int32"), axis=0)
        return x + ops.cast(vectors, x.dtype)

    def compute_output_shape(self, x_shape):
        return tuple(x_shape)
