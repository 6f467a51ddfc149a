import keras

from keras_tx.layers.alignment_attention import AlignmentAttention
from keras_tx.layers.parts import dense, fresh
from keras_tx.ops.alignment import additive_scores, multiplicative_scores

SCORES = ("dot", "general", "concat")


@keras.saving.register_keras_serializable(package="keras_tx")
class LuongAttention(AlignmentAttention):
    """Multiplicative attention of a decoder's state to a source sequence.

    `a = softmax(score(q, h))` over the source positions, `c = sum a h`, where the score is
    `q . h` ("dot"), `q . W h` ("general") or `v . tanh(W [q; h])` ("concat").

    Args:
        score: "general", "dot" or "concat".
        units: Rows of W for "concat". Default: the last dimension of `query`.
        kernel_initializer: Initializer of W and v.

    Call arguments:
        query: (B, Q), one step, or (B, T, Q), many.
        values: (B, S, M), the source h; M = Q for "dot".
        mask: Boolean (B, S), True at real positions of the source. Default: the mask that Keras
            attached to `values`, if any.
        projected_keys: What `project_keys(values)` gave, so that a decoder computes it once per
            sequence. Default: computed here.
        return_attention_scores: Whether to return the weights a too.

    Returns:
        c, (B, M) or (B, T, M), in the dtype of `values`; then, if asked for, the weights (B, S) or
        (B, T, S) in float32.

    Raises:
        ValueError: If the score is unknown, an input has a wrong rank, or "dot" is asked for with
            Q != M.

    Masking: Masked positions get weight 0. A row with no real position gives 0.

    Precision: Scores and softmax are float32.

    Example:
        >>> import numpy as np
        >>> attention = LuongAttention("general")
        >>> source = np.ones((2, 5, 6), "float32")
        >>> attention(np.ones((2, 3, 4), "float32"), source).shape
        (2, 3, 6)

    Reference:
        Luong et al. 2015, "Effective Approaches to Attention-based Neural Machine Translation",
        section 3.1.
    """

    def __init__(
        self,
        score: str = "general",
        *,
        units: int | None = None,
        kernel_initializer: str | keras.initializers.Initializer = "glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        if score not in SCORES:
            raise ValueError(f"`score` must be one of {SCORES}. Received: {score!r}")
        if units is not None and (not isinstance(units, int) or units < 1):
            raise ValueError(f"`units` must be a positive integer or None. Received: {units!r}")
        self.score = score
        self.units = units
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def _build_scores(self, query_dim: int, values_dim: int):
        if self.score == "dot" and query_dim != values_dim:
            raise ValueError(
                'With score="dot" the last dimensions of `query` and `values` must be equal; use '
                f'score="general" otherwise. Received: {query_dim} and {values_dim}'
            )
        if self.score == "general":
            self.key_dense = dense(self, query_dim, "key_dense", values_dim)
        elif self.score == "concat":  # W [q; h] as two products, so that W h is computed once
            units = self.units or query_dim
            self.query_dense = dense(self, units, "query_dense", query_dim)
            self.key_dense = dense(self, units, "key_dense", values_dim)
            self.score_vector = self.add_weight(
                shape=(units, 1),
                initializer=fresh(self.kernel_initializer),
                autocast=False,
                name="score_vector",
            )

    def project_keys(self, values):
        return values if self.score == "dot" else self.key_dense(values)

    def _project_query(self, query):
        return self.query_dense(query) if self.score == "concat" else query

    def _scores(self, query, keys):
        if self.score == "concat":
            return additive_scores(query, keys, self.score_vector)
        return multiplicative_scores(query, keys)
