import keras

from keras_tx.layers.alignment_attention import AlignmentAttention
from keras_tx.layers.parts import dense, fresh
from keras_tx.ops.alignment import additive_scores


@keras.saving.register_keras_serializable(package="keras_tx")
class BahdanauAttention(AlignmentAttention):
    """Additive attention of a decoder's state to a source sequence.

    `e = v . tanh(W_q q + W_k h)`, `a = softmax(e)` over the source positions, `c = sum a h`.

    Args:
        units: Width U of the hidden layer of the score.
        kernel_initializer: Initializer of W_q, W_k and v.

    Call arguments:
        query: (B, Q), one step, or (B, T, Q), many.
        values: (B, S, M), the source h.
        mask: Boolean (B, S), True at real positions of the source. Default: the mask that Keras
            attached to `values`, if any.
        projected_keys: W_k h (B, S, U) from `project_keys(values)`, so that a decoder computes it
            once per sequence. Default: computed here.
        return_attention_scores: Whether to return the weights a too.

    Returns:
        c, (B, M) or (B, T, M), in the dtype of `values`; then, if asked for, the weights (B, S) or
        (B, T, S) in float32.

    Raises:
        ValueError: If `units` is not a positive integer, or an input has a wrong rank.

    Masking: Masked positions get weight 0. A row with no real position gives 0.

    Precision: Scores and softmax are float32.

    Example:
        >>> import numpy as np
        >>> attention = BahdanauAttention(8)
        >>> source = np.ones((2, 5, 6), "float32")
        >>> attention(np.ones((2, 4), "float32"), source).shape
        (2, 6)
        >>> attention(np.ones((2, 3, 4), "float32"), source).shape
        (2, 3, 6)

    Reference:
        Bahdanau et al. 2015, "Neural Machine Translation by Jointly Learning to Align and
        Translate", section 3.1, Eq. 5 and 6, and A.1.2.
    """

    def __init__(
        self,
        units: int,
        *,
        kernel_initializer: str | keras.initializers.Initializer = "glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        if not isinstance(units, int) or units < 1:
            raise ValueError(f"`units` must be a positive integer. Received: {units!r}")
        self.units = units
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def _build_scores(self, query_dim: int, values_dim: int):
        self.query_dense = dense(self, self.units, "query_dense", query_dim)
        self.key_dense = dense(self, self.units, "key_dense", values_dim)
        self.score_vector = self.add_weight(
            shape=(self.units, 1),
            initializer=fresh(self.kernel_initializer),
            autocast=False,
            name="score_vector",
        )

    def project_keys(self, values):
        return self.key_dense(values)

    def _project_query(self, query):
        return self.query_dense(query)

    def _scores(self, query, keys):
        return additive_scores(query, keys, self.score_vector)
