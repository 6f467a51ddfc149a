"""How the parts of a layer join its stream: norms, layer scale, dropouts, residual connections."""

import keras
from keras import ops

from keras_tx.layers.normalization import check_normalization, make_normalization

PARALLEL = ("parallel", "parallel_two_norms")
ORDERS = ("pre", "post", "sandwich", *PARALLEL)


class Residual:
    """Mixin for a layer of parts f, g, ... that each give a branch beside the identity.

        pre                 x + f(norm(x)), then the next part
        post                norm(x + f(x)), then the next part
        sandwich            x + norm'(f(norm(x))), then the next part
        parallel            x + f(norm(x)) + g(norm(x)), one norm
        parallel_two_norms  x + f(norm_f(x)) + g(norm_g(x))

    where f stands for what a part gives after dropout, times its layer scale, if any, and is 0 for
    the rows that stochastic depth drops. The numbers are the layer's: `normalization`,
    `normalization_order`, `layer_norm_epsilon`, `layer_scale`, `dropout`, `stochastic_depth`.
    """

    def _check_branches(self, normalization, order, stochastic_depth, layer_scale):
        check_normalization(normalization)
        if order not in ORDERS:
            raise ValueError(f"`normalization_order` must be one of {ORDERS}. Received: {order!r}")
        if not 0 <= stochastic_depth < 1:
            raise ValueError(
                f"`stochastic_depth` must be from 0 to below 1. Received: {stochastic_depth}"
            )
        if layer_scale is not None and not isinstance(layer_scale, (int, float)):
            raise ValueError(f"`layer_scale` must be a number or None. Received: {layer_scale!r}")

    @property
    def normalization(self):
        """Kept out of Keras' tracking: a layer given is a template."""
        return self._argument("normalization")

    def _build_branches(self, parts, hidden_dim: int):
        """Makes what the parts with these names need, as attributes named by theirs."""
        if self.normalization_order == "parallel":
            self.shared_norm = self._make_norm("shared_norm", hidden_dim)
        for part in parts:
            if self.normalization_order != "parallel":
                setattr(self, f"{part}_norm", self._make_norm(f"{part}_norm", hidden_dim))
            if self.normalization_order == "sandwich":
                name = f"{part}_output_norm"
                setattr(self, name, self._make_norm(name, hidden_dim))
            if self.layer_scale is not None:
                scale = self.add_weight(
                    shape=(hidden_dim,),
                    initializer=keras.initializers.Constant(self.layer_scale),
                    name=f"{part}_layer_scale",
                )
                setattr(self, f"{part}_layer_scale", scale)
        self.residual_dropout = keras.layers.Dropout(
            self.dropout, name="residual_dropout", dtype=self.dtype_policy
        )
        if self.stochastic_depth:  # a row at a time
            self.row_dropout = keras.layers.Dropout(
                self.stochastic_depth, (None, 1, 1), name="row_dropout", dtype=self.dtype_policy
            )

    def _make_norm(self, name, hidden_dim):
        return make_normalization(
            self.normalization, name, self.layer_norm_epsilon, self.dtype_policy, hidden_dim
        )

    def _add_branches(self, x, parts: dict, training):
        """x with the branches of the parts, {name: function of (B, T, D)}, added."""
        if self.normalization_order in PARALLEL:
            return self._add_parallel(x, parts, training)
        for part, function in parts.items():
            if self.normalization_order == "post":
                x = self._normalize(f"{part}_norm", x + self._branch(part, function, x, training))
            else:
                y = self._normalize(f"{part}_norm", x)
                x = x + self._branch(part, function, y, training)
        return x

    def _add_parallel(self, x, parts, training):
        is_shared = self.normalization_order == "parallel"
        normal = self._normalize("shared_norm", x) if is_shared else None
        total = x
        for part, function in parts.items():
            y = normal if is_shared else self._normalize(f"{part}_norm", x)
            total = total + self._branch(part, function, y, training)
        return total

    def _branch(self, part, function, x, training):
        y = self.residual_dropout(function(x), training=training)
        if self.normalization_order == "sandwich":
            y = self._normalize(f"{part}_output_norm", y)
        if self.layer_scale is not None:
            y = y * ops.cast(getattr(self, f"{part}_layer_scale"), y.dtype)
        return self.row_dropout(y, training=training) if self.stochastic_depth else y

    def _normalize(self, name, x):
        return ops.cast(getattr(self, name)(x), self.compute_dtype)
