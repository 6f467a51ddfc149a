import keras
from keras import ops

from keras_tx.layers.bahdanau_attention import BahdanauAttention
from keras_tx.layers.layer import Layer
from keras_tx.layers.parts import build_part
from keras_tx.layers.recurrent_layer import RecurrentLayer
from keras_tx.ops.recurrence import STATES

INITIAL_STATES = ("projected", "last", "zeros")


@keras.saving.register_keras_serializable(package="keras_tx")
class RecurrentDecoder(Layer):
    """Follows a target while it reads a source: all steps at once, or one after the other.

    With y_{t-1} the embedded token before, and h the source:

    - `BahdanauAttention`: `c_t = attention(s_{t-1}, h)`, `s_t = f(s_{t-1}, [y_{t-1}; c_t])`,
      output `tanh(W [s_t; c_t; y_{t-1}])`;
    - `LuongAttention`: `s_t = f(s_{t-1}, y_{t-1})`, `c_t = attention(s_t, h)`,
      output `tanh(W [c_t; s_t])`;
    - None: `s_t = f(s_{t-1}, [y_{t-1}; c])`, output `tanh(W [s_t; c; y_{t-1}])`, where c is the
      encoder's last state.

    Args:
        units: Width D of a state.
        num_layers: Number of recurrent layers. Bahdanau's attention stands in the first one; its
            context feeds the others too.
        cell: "gru" or "lstm".
        attention: A `BahdanauAttention` or `LuongAttention`, or None.
        context_dim: Last dimension M of the source.
        output_dim: Features E of the output.
        initial_state: "projected", "last" or "zeros": what s_0 is of the encoder's last states.
        dropout: Fraction dropped of the input, between layers and of the output.

    Call arguments:
        x: (B, T, E), embedded targets.
        memory: What `remember` gave.
        states: What `first_states` gave.
        return_attention_scores: Whether to return the weights too; needs an attention.

    Returns:
        (B, T, E); then, if asked for, the weights (B, T, S) in float32.
    """

    def __init__(
        self,
        units: int,
        num_layers: int = 1,
        cell: str = "gru",
        *,
        attention: keras.layers.Layer | None = None,
        context_dim: int,
        output_dim: int,
        initial_state: str = "projected",
        dropout: float = 0.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if initial_state not in INITIAL_STATES:
            raise ValueError(
                f"`initial_state` must be one of {INITIAL_STATES}. Received: {initial_state!r}"
            )
        self.units = units
        self.num_layers = num_layers
        self.cell = cell
        self.attention = attention
        self.context_dim = context_dim
        self.output_dim = output_dim
        self.initial_state = initial_state
        self.dropout = dropout
        self._reads_before = isinstance(attention, BahdanauAttention)
        self._reads_after = attention is not None and not self._reads_before

    def build(self, x_shape):
        input_dim, fed = x_shape[-1], 0 if self._reads_after else self.context_dim
        self.layers = []
        for number in range(self.num_layers):
            reads = number == 0 and self._reads_before
            layer = RecurrentLayer(
                self.units,
                self.cell,
                attention=self.attention if reads else None,
                context_dim=self.context_dim if reads else None,
                name=f"layer_{number}",
                dtype=self.dtype_policy,
            )
            layer.build((None, None, (self.units if number else input_dim) + (0 if reads else fed)))
            self.layers.append(layer)
        if self._reads_after:
            build_part(self.attention, (None, self.units), (None, None, self.context_dim))
        self.state_denses = []
        if self.initial_state == "projected":
            self.state_denses = [
                self._dense(f"state_dense_{number}_{part}", self.units, self.context_dim)
                for number in range(self.num_layers)
                for part in "hc"[: STATES[self.cell]]
            ]
        width = self.units + self.context_dim + (0 if self._reads_after else input_dim)
        self.output_dense = self._dense("output_dense", self.output_dim, width)
        self.output_dropout = keras.layers.Dropout(
            self.dropout, name="output_dropout", dtype=self.dtype_policy
        )

    def _dense(self, name, units, input_dim):
        layer = keras.layers.Dense(units, activation="tanh", name=name, dtype=self.dtype_policy)
        layer.build((None, input_dim))
        return layer

    def remember(self, values, last_states, mask=None):
        """What every step reads, computed once: a dictionary of tensors, the batch first."""
        if self.attention is None:
            return {"context": last_states[-1][0]}
        memory = {"values": values, "keys": self.attention.project_keys(values)}
        return memory if mask is None else {**memory, "mask": mask}

    def first_states(self, last_states):
        """s_0 of each layer, from the encoder's last states."""
        if self.initial_state == "projected":
            denses = iter(self.state_denses)
            return [[next(denses)(state) for state in states] for states in last_states]
        if self.initial_state == "last":  # what the backward encoder read last is the beginning
            return [[state[:, -self.units :] for state in states] for states in last_states]
        zeros = ops.zeros_like(last_states[0][0][:, : self.units])
        return [[zeros for _ in states] for states in last_states]

    def call(
        self, x, memory, states, return_attention_scores: bool = False, training: bool | None = None
    ):
        x = self.output_dropout(x, training=training)
        hidden, context, query = x, None, None
        if self.attention is None:
            context = ops.repeat(memory["context"][:, None], ops.shape(x)[1], axis=1)
        for number, (layer, state) in enumerate(zip(self.layers, states, strict=True)):
            if number:
                hidden = self.output_dropout(hidden, training=training)
            if number == 0 and self._reads_before:
                hidden, _ = layer(hidden, initial_state=state, memory=memory)
                hidden, context = hidden[..., : self.units], hidden[..., self.units :]
                query = ops.concatenate([state[0][:, None], hidden[:, :-1]], axis=1)
            else:
                hidden, _ = layer(_join(hidden, context), initial_state=state)
        if self._reads_after:
            query = hidden
            context, _ = self._attend(query, memory)
        output = self.output_dropout(self._output(hidden, context, x), training=training)
        return (output, self._attend(query, memory)[1]) if return_attention_scores else output

    def step(self, x, memory, states):
        """One step: x (B, E) and the states before -> output (B, E), states, weights or None."""
        hidden, context, query, new_states = x, memory.get("context"), None, []
        for number, (layer, state) in enumerate(zip(self.layers, states, strict=True)):
            if number == 0 and self._reads_before:
                query = state[0]
                hidden, state = layer.step(hidden, state, memory)
                hidden, context = hidden[:, : self.units], hidden[:, self.units :]
            else:
                hidden, state = layer.step(_join(hidden, context), state)
            new_states.append(state)
        weights = None
        if self.attention is not None:
            read, weights = self._attend(hidden if self._reads_after else query, memory)
            context = read if self._reads_after else context
        return self._output(hidden, context, x), new_states, weights

    def _attend(self, query, memory):
        return self.attention(
            query,
            memory["values"],
            mask=memory.get("mask"),
            projected_keys=memory["keys"],
            return_attention_scores=True,
        )

    def _output(self, hidden, context, x):
        parts = [context, hidden] if self._reads_after else [hidden, context, x]
        return self.output_dense(ops.concatenate(parts, axis=-1))

    def compute_output_shape(self, x_shape):
        return (*x_shape[:-1], self.output_dim)


def _join(x, context):
    return x if context is None else ops.concatenate([x, context], axis=-1)
