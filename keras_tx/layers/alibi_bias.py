import keras
import numpy as np
from keras import ops

from keras_tx.layers.position_bias import PositionBias
from keras_tx.ops.position_bias import alibi_slopes


@keras.saving.register_keras_serializable(package="keras_tx")
class AlibiBias(PositionBias):
    """ALiBi: the farther a key, the lower its score, by a slope of each head's own.

    `bias = -slope_n * |distance|`, `slope_n = 2 ** (-8 n / N)`. It has no weights. Used as
    `MultiHeadSelfAttention(..., position=AlibiBias())`.

    Build arguments:
        scores_shape: (B, N, T, S) of the scores, of which N must be known.

    Call arguments:
        distance: Integers of any shape (...), place of the query minus place of the key.

    Returns:
        float32 (N, ...), to be added to the scores.

    Raises:
        ValueError: If it is not built with the shape of the scores.

    Example:
        >>> bias = AlibiBias()
        >>> bias.build((None, 2, None, None))
        >>> ops.convert_to_numpy(bias(np.array([1, 3]))).tolist()
        [[-0.0625, -0.1875], [-0.00390625, -0.01171875]]

    Reference:
        Press et al. 2022, "Train Short, Test Long", section 3 and, for a number of heads that is
        no power of two, its code.

    Differs from the paper: Keys after the query count by their distance too, for attention that
        is not causal. Bloom adds `slope * place of the key`, the same up to a constant that a
        causal softmax does not see.
    """

    def call(self, distance):
        distance = ops.abs(ops.cast(distance, "float32"))
        slopes = np.reshape(alibi_slopes(self.num_heads), (-1, *[1] * len(distance.shape)))
        return distance * ops.convert_to_tensor(-slopes, "float32")
