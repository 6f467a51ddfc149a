import contextlib

import keras
from keras import ops

from keras_tx.layers.layer import Layer
from keras_tx.layers.recurrent_cell import RecurrentCell
from keras_tx.ops.recurrence import GATES, STATES


@keras.saving.register_keras_serializable(package="keras_tx")
class RecurrentLayer(Layer):
    """A GRU or LSTM over a sequence, with what it can compute at once outside the loop.

    With an attention it is Bahdanau's decoder: each step reads `c_t = attention(s_{t-1}, values)`
    before the cell, `s_t = f(s_{t-1}, x_t, c_t)`.

    Args:
        units: Width D of the state.
        cell: "gru" or "lstm".
        bidirectional: Whether a second one reads the sequence backwards; the two are concatenated.
        attention: A layer such as `BahdanauAttention`, or None.
        context_dim: Last dimension M of the values that the attention reads.

    Call arguments:
        x: (B, T, E).
        mask: Boolean (B, T), True at real positions. The state passes the others unchanged.
        initial_state: List of (B, D), one for a GRU (h), two for an LSTM (h, c). Default: zeros.
        memory: For the attention, a dictionary of `values` (B, S, M), its projected `keys`, and,
            optionally, `mask` (B, S).

    Returns:
        The sequence (B, T, D), or (B, T, 2 D) when bidirectional, or (B, T, D + M), [s_t; c_t],
        with an attention; and the list of last states, likewise (B, D) or (B, 2 D).

    Reference:
        Bahdanau et al. 2015, A.1 and A.2; Schuster and Paliwal 1997.
    """

    def __init__(
        self,
        units: int,
        cell: str = "gru",
        *,
        bidirectional: bool = False,
        attention: keras.layers.Layer | None = None,
        context_dim: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if cell not in GATES:
            raise ValueError(f"`cell` must be one of {tuple(GATES)}. Received: {cell!r}")
        if bidirectional and attention is not None:
            raise ValueError("A layer that reads by attention cannot be bidirectional.")
        self.units = units
        self.cell = cell
        self.bidirectional = bidirectional
        self.attention = attention
        self.context_dim = context_dim

    def build(self, x_shape):
        self.input_dense = self._input_dense("input_dense", x_shape[-1])
        self.loop = self._loop("loop")
        if self.bidirectional:
            self.backward_input_dense = self._input_dense("backward_input_dense", x_shape[-1])
            self.backward_loop = self._loop("backward_loop", go_backwards=True)

    def _input_dense(self, name, input_dim):
        layer = keras.layers.Dense(
            GATES[self.cell] * self.units, name=name, dtype=self.dtype_policy
        )
        layer.build((None, None, input_dim))
        return layer

    def _loop(self, name, go_backwards=False):
        cell = RecurrentCell(
            self.units,
            self.cell,
            attention=self.attention,
            context_dim=self.context_dim,
            name="cell",
            dtype=self.dtype_policy,
        )
        loop = keras.layers.RNN(
            cell,
            return_sequences=True,
            return_state=True,
            go_backwards=go_backwards,
            name=name,
            dtype=self.dtype_policy,
        )
        loop.build((None, None, GATES[self.cell] * self.units))
        return loop

    def call(self, x, mask=None, initial_state=None, memory=None):
        with self._remembering(memory):
            outputs, *states = self.loop(
                self.input_dense(x), mask=mask, initial_state=initial_state
            )
        if self.bidirectional:
            backward, *backward_states = self.backward_loop(self.backward_input_dense(x), mask=mask)
            outputs = ops.concatenate([outputs, ops.flip(backward, axis=1)], axis=-1)
            states = [
                ops.concatenate(pair, axis=-1) for pair in zip(states, backward_states, strict=True)
            ]
        return outputs, states

    def step(self, x, states, memory=None):
        """One step: x (B, E) and the states before -> output (B, D or D + M), the states after."""
        with self._remembering(memory):
            return self.loop.cell(self.input_dense(x), states)

    @contextlib.contextmanager
    def _remembering(self, memory):
        """Keras' loop hands the cell inputs and states alone, so the cell keeps the memory."""
        self.loop.cell.memory = memory
        try:
            yield
        finally:
            self.loop.cell.memory = None

    def compute_mask(self, x, previous_mask):
        return None  # padded places hold a repeated state; who reads it is given the mask

    def compute_output_shape(self, x_shape):
        states = [(x_shape[0], self._width(self.units))] * STATES[self.cell]
        width = self.units + self.context_dim if self.attention else self._width(self.units)
        return (*x_shape[:-1], width), states

    def _width(self, units):
        return 2 * units if self.bidirectional else units
