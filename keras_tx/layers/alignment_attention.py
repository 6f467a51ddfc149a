"""What the attention layers of the recurrent family share: one head, scores of their own."""

from keras import ops

from keras_tx.layers.attached_mask import resolve_mask
from keras_tx.layers.layer import Layer
from keras_tx.ops import masks
from keras_tx.ops.softmax import masked_softmax


class AlignmentAttention(Layer):
    """Base: `a = softmax(score(q, h))`, `c = sum a h`. A subclass projects and scores."""

    use_bias = False  # the papers' scores have none

    def project_keys(self, values):
        """The part of the score that depends on `values` alone, once per sequence: (B, S, U)."""
        raise NotImplementedError

    def _project_query(self, query):
        """The part of the score that depends on the query alone: (..., Q) -> (..., U)."""
        return query

    def _scores(self, query, keys):
        """Both projected, (B, T, U) and (B, S, U) -> float32 (B, T, S)."""
        raise NotImplementedError

    def build(self, query_shape, values_shape):
        for name, shape, ranks in (("query", query_shape, (2, 3)), ("values", values_shape, (3,))):
            if len(shape) not in ranks or shape[-1] is None:
                raise ValueError(
                    f"`{name}` must have {' or '.join(map(str, ranks))} dimensions, the last one "
                    f"known. Received: shape {tuple(shape)}"
                )
        self._build_scores(query_shape[-1], values_shape[-1])

    def call(
        self, query, values, mask=None, projected_keys=None, return_attention_scores: bool = False
    ):
        one_step = len(query.shape) == 2
        query = self._project_query(query)
        steps = query[:, None] if one_step else query  # (B, T, U)
        mask = resolve_mask(values, mask)
        if mask is not None:
            mask = masks.padding(mask, values)
        if mask is not None and projected_keys is None:
            values = masks.hide_padding(values, mask)
        keys = self.project_keys(values) if projected_keys is None else projected_keys
        visible = None if mask is None else mask[:, None]  # (B, 1, S)
        weights = masked_softmax(self._scores(steps, keys), visible)  # (B, T, S)
        context = ops.matmul(ops.cast(weights, values.dtype), values)  # (B, T, M)
        if one_step:
            context, weights = context[:, 0], weights[:, 0]
        return (context, weights) if return_attention_scores else context

    def compute_mask(self, inputs, previous_mask):
        # What Keras calls `mask` here is that of the values; the output has the query's steps.
        return resolve_mask(inputs)

    def compute_output_shape(self, query_shape, values_shape):
        return (*query_shape[:-1], values_shape[-1])
