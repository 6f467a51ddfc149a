import keras
from keras import ops

from keras_tx.layers.layer import Layer
from keras_tx.layers.parts import build_part
from keras_tx.ops.recurrence import GATES, STATES, gru_step, lstm_step


@keras.saving.register_keras_serializable(package="keras_tx")
class RecurrentCell(Layer):
    """One step of a GRU or LSTM for `keras.layers.RNN`; its input is projected outside the loop.

    With an attention and a `memory` (values, projected keys and mask), the step first reads
    `c_t = attention(s_{t-1}, values)` and adds its projection to the input; it then gives
    [s_t; c_t].

    Args:
        units: Width of the state.
        cell: "gru" or "lstm".
        attention: A layer called as `attention(query, values, mask=, projected_keys=)`, or None.
        context_dim: Last dimension of the values that the attention reads.

    Reference:
        Bahdanau et al. 2015, A.1 and A.2.2.
    """

    def __init__(
        self,
        units: int,
        cell: str = "gru",
        *,
        attention: keras.layers.Layer | None = None,
        context_dim: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.units = units
        self.cell = cell
        self.attention = attention
        self.context_dim = context_dim
        self.state_size = [units] * STATES[cell]
        self.output_size = units + (0 if attention is None else context_dim)
        self.memory = None

    def build(self, inputs_shape):
        gates = GATES[self.cell] * self.units
        # A GRU's recurrent bias stands inside the reset gate; an LSTM's would repeat the input's.
        self.recurrent_dense = self._dense(gates, "recurrent_dense", self.units, "orthogonal")
        if self.attention is not None:
            self.context_dense = self._dense(gates, "context_dense", self.context_dim)
            build_part(self.attention, (None, self.units), (None, None, self.context_dim))

    def _dense(self, units, name, input_dim, kernel_initializer="glorot_uniform"):
        layer = keras.layers.Dense(
            units,
            use_bias=name == "recurrent_dense" and self.cell == "gru",
            kernel_initializer=kernel_initializer,
            name=name,
            dtype=self.dtype_policy,
        )
        layer.build((None, input_dim))
        return layer

    def call(self, inputs, states):
        hidden = states[0]
        if self.attention is not None:
            context = self.attention(
                hidden,
                self.memory["values"],
                mask=self.memory.get("mask"),
                projected_keys=self.memory["keys"],
            )
            inputs = inputs + self.context_dense(context)
        recurrent = self.recurrent_dense(hidden)
        if self.cell == "gru":
            new = [gru_step(inputs, recurrent, hidden)]
        else:
            new = list(lstm_step(inputs, recurrent, states[1]))
        output = new[0] if self.attention is None else ops.concatenate([new[0], context], axis=-1)
        return output, new

    def compute_output_shape(self, inputs_shape, states_shape=None):
        return (*inputs_shape[:-1], self.output_size)
