import keras
from keras import ops

from keras_tx.layers.parts import fresh
from keras_tx.layers.position_bias import PositionBias
from keras_tx.ops.position_bias import relative_buckets


@keras.saving.register_keras_serializable(package="keras_tx")
class RelativePositionBias(PositionBias):
    """T5's learned bias: a number for each head and bucket of distances.

    Near distances have a bucket each, farther ones share theirs, logarithmically. Used as
    `MultiHeadSelfAttention(..., position=RelativePositionBias())`.

    Args:
        num_buckets: Number of buckets.
        max_distance: From here on all distances share one bucket.
        bidirectional: Whether keys after the query have half of the buckets. With False, for
            causal attention, they share the bucket of distance 0.
        embeddings_initializer: Initializer of the biases (num_buckets, N).

    Build arguments:
        scores_shape: (B, N, T, S) of the scores, of which N must be known.

    Call arguments:
        distance: Integers of any shape (...), place of the query minus place of the key.

    Returns:
        float32 (N, ...), to be added to the scores.

    Raises:
        ValueError: If the buckets are too few, or it is not built with the shape of the scores.

    Example:
        >>> bias = RelativePositionBias(8, max_distance=16)
        >>> bias.build((None, 3, None, None))
        >>> bias(np.arange(5)[:, None] - np.arange(7)[None, :]).shape
        (3, 5, 7)

    Reference:
        Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
        Transformer", section 2.1.
    """

    def __init__(
        self,
        num_buckets: int = 32,
        max_distance: int = 128,
        *,
        bidirectional: bool = True,
        embeddings_initializer: str | keras.initializers.Initializer = "uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        sides = 2 if bidirectional else 1
        if not isinstance(num_buckets, int) or num_buckets < 2 * sides or num_buckets % sides:
            raise ValueError(
                "`num_buckets` must be an even integer, at least 4, or without `bidirectional` an "
                f"integer, at least 2. Received: {num_buckets}, bidirectional={bidirectional}"
            )
        near = num_buckets // sides // 2
        if not isinstance(max_distance, int) or max_distance <= near:
            raise ValueError(
                f"`max_distance` must be an integer above {near}, the number of distances that "
                f"have a bucket each. Received: {max_distance}"
            )
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    def build(self, scores_shape):
        super().build(scores_shape)
        self.embeddings = self.add_weight(
            shape=(self.num_buckets, self.num_heads),
            initializer=fresh(self.embeddings_initializer),
            autocast=False,
            name="embeddings",
        )

    def call(self, distance):
        buckets = relative_buckets(
            distance, self.num_buckets, self.max_distance, self.bidirectional
        )
        biases = ops.take(self.embeddings, buckets, axis=0)  # (..., N)
        return ops.cast(ops.moveaxis(biases, -1, 0), "float32")
