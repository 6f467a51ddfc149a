from collections.abc import Callable

import keras
from keras import ops

from keras_tx.layers.attached_mask import resolve_mask
from keras_tx.layers.feed_forward import check_intermediate_dim, default_intermediate_dim
from keras_tx.layers.layer import Layer, known_features
from keras_tx.layers.parts import fresh
from keras_tx.ops import activations, routing


@keras.saving.register_keras_serializable(package="keras_tx")
class MoEFFN(Layer):
    """A mixture of feed-forward experts, of which each token uses the best few.

    `y = sum_e w_e FFN_e(x)` over the `top_k` experts with the greatest router probability, w_e
    those probabilities divided by their sum. No token is dropped, shapes are static, and compute
    grows with `top_k`, not with `num_experts`. Nothing that other rows hold changes a token's
    result.

    Args:
        num_experts: Number of experts E.
        top_k: Experts used by a token.
        intermediate_dim: Width F of an expert. Default: 4 D, or when gated 8/3 D rounded up to a
            multiple of 8.
        gated: Whether a gate multiplies the inner features.
        balance_loss_weight: Factor of the balance loss `E sum_e f_e P_e` added in training, f_e
            the share of choices that went to expert e and P_e its mean probability, over real
            tokens. 0 adds none.
        activation: Inner activation. Default: "gelu", or "silu" when gated.
        use_bias: Whether the experts' products have a bias.
        kernel_initializer: Initializer of the router and of each expert's products by themselves.

    Call arguments:
        x: (B, T, D).
        padding_mask: Boolean (B, T), True at real positions, for the balance loss. Default: the
            mask that Keras attached to `x`, if any.

    Returns:
        (B, T, D) in the compute dtype.

    Raises:
        ValueError: If `top_k` is not between 1 and `num_experts`.

    Precision: The router is float32.

    Example:
        >>> import numpy as np
        >>> MoEFFN(4, top_k=2, intermediate_dim=8)(np.ones((2, 5, 6), "float32")).shape
        (2, 5, 6)

    Reference:
        Shazeer et al. 2017, "Outrageously Large Neural Networks", Eq. 1-5; Fedus et al. 2022,
        "Switch Transformers", Eq. 4-6; Jiang et al. 2024, "Mixtral of Experts", section 2.1.
    """

    def __init__(
        self,
        num_experts: int,
        top_k: int = 2,
        intermediate_dim: int | None = None,
        *,
        gated: bool = False,
        balance_loss_weight: float = 0.01,
        activation: str | Callable | None = None,
        use_bias: bool = False,
        kernel_initializer: str | keras.initializers.Initializer = "lecun_normal",
        **kwargs,
    ):
        super().__init__(**kwargs)
        if num_experts < 1 or not 1 <= top_k <= num_experts:
            raise ValueError(
                "`top_k` must be from 1 to `num_experts`. "
                f"Received: top_k={top_k}, num_experts={num_experts}"
            )
        check_intermediate_dim(intermediate_dim)
        self.num_experts = num_experts
        self.top_k = top_k
        self.intermediate_dim = intermediate_dim
        self.gated = gated
        self.balance_loss_weight = balance_loss_weight
        self.activation = activations.get(activation or ("silu" if gated else "gelu"))
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, x_shape):
        hidden_dim = known_features("x", x_shape)
        inner = self.intermediate_dim or default_intermediate_dim(hidden_dim, self.gated)
        self.router = keras.layers.Dense(
            self.num_experts,
            use_bias=False,
            kernel_initializer=fresh(self.kernel_initializer),
            name="router",
            dtype="float32",
        )
        self.router.build((None, hidden_dim))
        wide = 2 * inner if self.gated else inner
        self.inner_kernel, self.inner_bias = self._bank("inner", hidden_dim, wide)
        self.output_kernel, self.output_bias = self._bank("output", inner, hidden_dim)

    def _bank(self, name, input_dim, output_dim):
        kernel = self.add_weight(
            shape=(self.num_experts, input_dim, output_dim),
            initializer=self._initialize_experts,
            name=f"{name}_kernel",
        )
        bias = None
        if self.use_bias:
            bias = self.add_weight(
                shape=(self.num_experts, output_dim), initializer="zeros", name=f"{name}_bias"
            )
        return kernel, bias

    def _initialize_experts(self, shape, dtype=None):
        """Each expert as a Dense of its own: of its own fan, and with numbers of its own."""
        config = self.kernel_initializer.get_config()
        kernels = []
        for expert in range(self.num_experts):
            if isinstance(config.get("seed"), int):
                config = {**config, "seed": config["seed"] + 1} if expert else config
            initializer = type(self.kernel_initializer).from_config(config)
            kernels.append(initializer(shape[1:], dtype=dtype))
        return ops.stack(kernels)

    def call(self, x, padding_mask=None, training: bool | None = None):
        mask = resolve_mask(x, padding_mask)
        shape, hidden_dim = ops.shape(x), x.shape[-1]
        tokens = ops.reshape(x, (-1, hidden_dim))  # (M, D)
        probabilities, experts, weights = routing.route_top_k(
            self.router(ops.cast(tokens, "float32")), self.top_k
        )
        if training and self.balance_loss_weight:
            mask = None if mask is None else ops.reshape(mask, (-1,))
            loss = routing.balance_loss(probabilities, experts, mask)
            self.add_loss(self.balance_loss_weight * loss)
        y = self._mix(tokens, experts, weights)
        return ops.reshape(y, shape)

    def _mix(self, tokens, experts, weights):
        """sum over the choices of weight * FFN_expert(token), (M, D)."""
        choices = ops.reshape(experts, (-1,))  # (A,), A = M k
        size = routing.block_size(choices.shape[0], self.num_experts)
        row_of_choice, choice_of_row, expert_of_block = routing.sort_into_blocks(
            choices, self.num_experts, size
        )
        hidden_dim = tokens.shape[-1]
        padded = ops.pad(tokens, ((0, 1), (0, 0)))  # the last row stands for "no token"
        rows = ops.take(padded, choice_of_row // self.top_k, axis=0)
        blocks = ops.reshape(rows, (-1, size, hidden_dim))
        inner = self._product(blocks, expert_of_block, self.inner_kernel, self.inner_bias)
        if self.gated:
            gate, inner = ops.split(inner, 2, axis=-1)
            inner = self.activation(gate) * inner
        else:
            inner = self.activation(inner)
        blocks = self._product(inner, expert_of_block, self.output_kernel, self.output_bias)
        rows = ops.reshape(blocks, (-1, hidden_dim))
        chosen = ops.reshape(ops.take(rows, row_of_choice, axis=0), (-1, self.top_k, hidden_dim))
        return ops.sum(chosen * ops.cast(weights, chosen.dtype)[..., None], axis=1)

    def _product(self, blocks, expert_of_block, kernel, bias):
        y = ops.matmul(blocks, ops.cast(ops.take(kernel, expert_of_block, axis=0), blocks.dtype))
        if bias is not None:
            y = y + ops.cast(ops.take(bias, expert_of_block, axis=0), blocks.dtype)[:, None]
        return y

    def compute_output_shape(self, x_shape):
        return tuple(x_shape)
