import math
from collections.abc import Callable

import keras
from keras import ops

from keras_tx.layers.layer import Layer, known_features
from keras_tx.layers.parts import dense, project
from keras_tx.ops import activations


def default_intermediate_dim(hidden_dim: int, gated: bool) -> int:
    """4 D, or when gated 8/3 D (as many weights) rounded up to a multiple of 8."""
    return math.ceil(hidden_dim / 3) * 8 if gated else 4 * hidden_dim


def check_intermediate_dim(value):
    if value is not None and (not isinstance(value, int) or value < 1):
        raise ValueError(
            f"`intermediate_dim` must be a positive integer or None. Received: {value!r}"
        )


@keras.saving.register_keras_serializable(package="keras_tx")
class FeedForward(Layer):
    """The position-wise feed-forward network of a transformer block.

    Plain: `W_2 f(W_1 x)`. Gated: `W_2 (f(W_g x) * W_1 x)`, with one fused product for W_g and W_1
    (SwiGLU when f is SiLU, GeGLU when it is GELU, of which "gelu_tanh" is Gemma's).

    Args:
        intermediate_dim: Width F between the two products. Default: 4 D, or when gated 8/3 D
            rounded up to a multiple of 8.
        gated: Whether a gate multiplies the inner features.
        dropout: Fraction of the output dropped in training.
        activation: f, a function or its name: Keras' names, "gelu_tanh", "quick_gelu",
            "squared_relu". Default: "gelu" (the exact one), or "silu" when gated.
        use_bias: Whether the products have a bias.
        kernel_initializer: Initializer of the products. The default does not depend on the width
            of the fused product, so it equals that of separate ones.

    Call arguments:
        x: (..., D).

    Returns:
        (..., D) in the compute dtype.

    Example:
        >>> import numpy as np
        >>> FeedForward(gated=True)(np.ones((2, 5, 12), "float32")).shape
        (2, 5, 12)

    Reference:
        Vaswani et al. 2017, Eq. 2; Shazeer 2020, "GLU Variants Improve Transformer", Eq. 5, 6.
    """

    def __init__(
        self,
        intermediate_dim: int | None = None,
        *,
        gated: bool = False,
        dropout: float = 0.0,
        activation: str | Callable | None = None,
        use_bias: bool = True,
        kernel_initializer: str | keras.initializers.Initializer = "lecun_normal",
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_intermediate_dim(intermediate_dim)
        self.intermediate_dim = intermediate_dim
        self.gated = gated
        self.dropout = dropout
        self.activation = activations.get(activation or ("silu" if gated else "gelu"))
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, x_shape):
        hidden_dim = known_features("x", x_shape)
        inner = self.intermediate_dim or default_intermediate_dim(hidden_dim, self.gated)
        self.inner_dense = dense(self, (2 if self.gated else 1) * inner, "inner_dense", hidden_dim)
        self.output_dense = dense(self, hidden_dim, "output_dense", inner)
        self.output_dropout = keras.layers.Dropout(
            self.dropout, name="output_dropout", dtype=self.dtype_policy
        )

    def call(self, x, training: bool | None = None):
        inner = project(self.inner_dense, x)
        if self.gated:
            gate, inner = ops.split(inner, 2, axis=-1)
            inner = self.activation(gate) * inner
        else:
            inner = self.activation(inner)
        return self.output_dropout(project(self.output_dense, inner), training=training)

    def compute_output_shape(self, x_shape):
        return tuple(x_shape)
