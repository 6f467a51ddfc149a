import keras

from keras_tx.layers.layer import Layer


class PositionBias(Layer):
    """Base of the layers that add to attention scores what depends on the distance alone.

    Used as `MultiHeadSelfAttention(..., position=AlibiBias())`. A subclass gives `call`, and
    `build` if it has weights; `self.num_heads` is known from `build` on.

    Build arguments:
        scores_shape: (B, N, T, S) of the scores, of which N must be known.

    Call arguments:
        distance: Integers of any shape (...), place of the query minus place of the key.

    Returns:
        float32 (N, ...), to be added to the scores.

    Raises:
        ValueError: If it is not built with the shape of the scores.
    """

    def build(self, scores_shape):
        if len(scores_shape) != 4 or scores_shape[1] is None:
            raise ValueError(
                "A position bias is built with the shape (batch, heads, queries, keys) of the "
                f"scores, and the heads must be known. Received: {tuple(scores_shape)}. Call "
                "`bias.build((None, num_heads, None, None))` first, as an attention layer does."
            )
        self.num_heads = scores_shape[1]

    def compute_output_shape(self, distance_shape):
        return (self.num_heads, *distance_shape)

    def compute_output_spec(self, distance):
        return keras.KerasTensor(self.compute_output_shape(distance.shape), "float32")
