import keras

from keras_tx.layers.layer import Layer
from keras_tx.layers.recurrent_layer import RecurrentLayer


@keras.saving.register_keras_serializable(package="keras_tx")
class RecurrentEncoder(Layer):
    """Layers of GRU or LSTM, each reading what the one below gives.

    Args:
        units: Width D of a state, in each direction.
        num_layers: Number of layers.
        cell: "gru" or "lstm".
        bidirectional: Whether each layer also reads backwards.
        dropout: Fraction dropped of the input of each layer and of the output.

    Call arguments:
        x: (B, S, E).
        mask: Boolean (B, S), True at real positions.

    Returns:
        h (B, S, M), M being D or 2 D; and the last states, a list for each layer: (B, M), one for
        a GRU (h), two for an LSTM (h, c).
    """

    def __init__(
        self,
        units: int,
        num_layers: int = 1,
        cell: str = "gru",
        *,
        bidirectional: bool = True,
        dropout: float = 0.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.units = units
        self.num_layers = num_layers
        self.cell = cell
        self.bidirectional = bidirectional
        self.dropout = dropout

    @property
    def output_dim(self) -> int:
        return self.units * (2 if self.bidirectional else 1)

    def build(self, x_shape):
        self.layers = []
        for number in range(self.num_layers):
            layer = RecurrentLayer(
                self.units,
                self.cell,
                bidirectional=self.bidirectional,
                name=f"layer_{number}",
                dtype=self.dtype_policy,
            )
            layer.build((None, None, self.output_dim if number else x_shape[-1]))
            self.layers.append(layer)
        self.output_dropout = keras.layers.Dropout(
            self.dropout, name="output_dropout", dtype=self.dtype_policy
        )

    def call(self, x, mask=None, training: bool | None = None):
        last_states = []
        for layer in self.layers:
            x = self.output_dropout(x, training=training)
            x, states = layer(x, mask=mask)
            last_states.append(states)
        return self.output_dropout(x, training=training), last_states

    def compute_mask(self, x, previous_mask):
        return None  # padded places hold a repeated state; who reads it is given the mask

    def compute_output_shape(self, x_shape):
        states = self.layers[0].compute_output_shape(x_shape)[1]
        return (*x_shape[:-1], self.output_dim), [states] * self.num_layers
