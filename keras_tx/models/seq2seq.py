import keras
import numpy as np
from keras import ops

from keras_tx.layers.bahdanau_attention import BahdanauAttention
from keras_tx.layers.luong_attention import LuongAttention
from keras_tx.layers.parts import clone
from keras_tx.layers.recurrent_decoder import RecurrentDecoder
from keras_tx.layers.recurrent_encoder import RecurrentEncoder
from keras_tx.models.model import Model, check_ids, check_targets, real_tokens, vocabulary_from
from keras_tx.models.paired_scoring import PairedScoring
from keras_tx.models.special_tokens import special_token_ids
from keras_tx.models.text_generation import TextGeneration
from keras_tx.ops.recurrence import GATES


@keras.saving.register_keras_serializable(package="keras_tx")
class Seq2Seq(PairedScoring, TextGeneration, Model):
    """A recurrent encoder-decoder, with attention or with one context vector.

    Source tokens are embedded and encoded (`RecurrentEncoder`), target tokens embedded and decoded
    (`RecurrentDecoder`, which has the equations); the logits use the target embedding, transposed.

    Args:
        vocabulary_size: Number of source ids. Default: the tokenizer's.
        num_layers: Recurrent layers of the encoder, and of the decoder.
        hidden_dim: Features D of a state, in each direction.
        target_vocabulary_size: Number of target ids V. Default: the target tokenizer's, or the
            source's number.
        embedding_dim: Features E of an embedded token. Default: `hidden_dim`.
        cell: "gru" or "lstm".
        bidirectional: Whether the encoder also reads backwards; h is then (B, S, 2 D).
        attention: "bahdanau", "luong", a `BahdanauAttention`, a `LuongAttention`, or None. With
            several layers, Bahdanau's stands in the first one and its context feeds the others.
        initial_state: The decoder's s_0: "projected", `tanh(W h)` of the encoder's last state;
            "last", that state itself (the backward encoder's when bidirectional); or "zeros".
        max_sequence_length: The most tokens that `generate` writes. In training there is no limit.
        tie_embeddings: Whether the logits use the target embedding, or a matrix of their own.
        dropout: Fraction dropped of the embeddings, of each layer's output and of the readout.
        tokenizer: A keras-nlp tokenizer that is saved, and exported, with the model.
        target_tokenizer: The targets' own. Default: the same.
        pad_token_id: Padding of sources and targets. Default: the tokenizers', or none.
        start_token_id: Stands before a target. Default: the target tokenizer's.
        end_token_id: Ends a target. Default: the target tokenizer's, or none.

    Call arguments:
        inputs: A dictionary of integers `source_ids` (B, S) and `target_ids` (B, T); the targets
            begin with the start token.
        return_attention_scores: Whether to return the attention weights too.

    Returns:
        float32 logits (B, T, V); then, if asked for, `{"attention": (B, 1, T, S)}`, empty without
        an attention.

    Raises:
        ValueError: If an argument or (numpy) ids are out of range, or an input is missing.

    Masking: Source padding changes nothing; a source of padding alone is read as zeros. Targets
    that are padding count in no loss and no metric.

    Example:
        >>> import numpy as np
        >>> model = Seq2Seq(11, hidden_dim=8, pad_token_id=0, start_token_id=1, end_token_id=2)
        >>> inputs = {"source_ids": np.array([[5, 6, 0]]), "target_ids": np.array([[1, 7]])}
        >>> model(inputs).shape
        (1, 2, 11)
        >>> result = model.generate([[5, 6]], max_new_tokens=4, return_dict=True)
        >>> len(result["token_ids"]) == len(result["attention_scores"]) == 1
        True

    Reference:
        Cho et al. 2014, "Learning Phrase Representations using RNN Encoder-Decoder"; Sutskever et
        al. 2014; Bahdanau et al. 2015, A.1 and A.2; Luong et al. 2015, Eq. 5. Sizes: Bahdanau et
        al. 2015, A.2.3 (RNNencdec, RNNsearch); Luong et al. 2015, 4.1; `seq2seq_mini` is this
        library's own.

    Differs from the paper: The readout has tanh for maxout, and ties its last matrix. Bahdanau's
    s_0 sees both directions. Luong's input feeding and reversed sources are left out.
    """

    sizes = {
        "seq2seq_mini": {"num_layers": 1, "hidden_dim": 256},
        "rnn_encoder_decoder": {
            "vocabulary_size": 30000,
            "hidden_dim": 1000,
            "embedding_dim": 620,
            "bidirectional": False,
            "attention": None,
        },
        "rnn_search": {"vocabulary_size": 30000, "hidden_dim": 1000, "embedding_dim": 620},
        "luong_2015": {
            "vocabulary_size": 50000,
            "num_layers": 4,
            "hidden_dim": 1000,
            "cell": "lstm",
            "bidirectional": False,
            "attention": "luong",
            "initial_state": "last",
            "dropout": 0.2,
        },
    }

    def __init__(
        self,
        vocabulary_size: int | None = None,
        num_layers: int = 1,
        hidden_dim: int = 256,
        *,
        target_vocabulary_size: int | None = None,
        embedding_dim: int | None = None,
        cell: str = "gru",
        bidirectional: bool = True,
        attention: str | keras.layers.Layer | None = "bahdanau",
        initial_state: str = "projected",
        max_sequence_length: int = 128,
        tie_embeddings: bool = True,
        dropout: float = 0.0,
        tokenizer: keras.layers.Layer | None = None,
        target_tokenizer: keras.layers.Layer | None = None,
        pad_token_id: int | None = None,
        start_token_id: int | None = None,
        end_token_id: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self._remember(
            vocabulary_size=vocabulary_size,
            target_vocabulary_size=target_vocabulary_size,
            embedding_dim=embedding_dim,
            attention=attention,
            pad_token_id=pad_token_id,
            start_token_id=start_token_id,
            end_token_id=end_token_id,
        )
        if cell not in GATES:
            raise ValueError(f"`cell` must be one of {tuple(GATES)}. Received: {cell!r}")
        for name, value in (
            ("num_layers", num_layers),
            ("hidden_dim", hidden_dim),
            ("embedding_dim", hidden_dim if embedding_dim is None else embedding_dim),
            ("max_sequence_length", max_sequence_length),
        ):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"`{name}` must be a positive integer. Received: {value!r}")
        self.tokenizer = tokenizer
        self.target_tokenizer = target_tokenizer
        self.vocabulary_size = vocabulary_from(tokenizer, vocabulary_size)
        if target_vocabulary_size is None and target_tokenizer is None:
            target_vocabulary_size = self.vocabulary_size
        self.target_vocabulary_size = vocabulary_from(target_tokenizer, target_vocabulary_size)
        self.num_layers = num_layers
        self.hidden_dim = hidden_dim
        self.embedding_dim = embedding_dim or hidden_dim
        self.cell = cell
        self.bidirectional = bidirectional
        self.initial_state = initial_state
        self.max_sequence_length = max_sequence_length
        self.tie_embeddings = tie_embeddings
        self.dropout = dropout
        self.source_pad_token_id, _, _ = special_token_ids(
            tokenizer, self.vocabulary_size, pad_token_id=pad_token_id
        )
        self.pad_token_id, self.start_token_id, self.end_token_id = special_token_ids(
            self.output_tokenizer,
            self.target_vocabulary_size,
            pad_token_id=pad_token_id,
            start_token_id=start_token_id,
            end_token_id=end_token_id,
        )
        self._make_encoder()
        self._make_decoder(self._make_attention(attention))
        self.finish()

    def _make_attention(self, attention):
        if attention is None:
            return None
        if attention == "bahdanau":
            attention = BahdanauAttention(self.hidden_dim)
        elif attention == "luong":
            attention = LuongAttention("general")
        elif not isinstance(attention, (BahdanauAttention, LuongAttention)):
            raise ValueError(
                '`attention` must be "bahdanau", "luong", None, a BahdanauAttention or a '
                f"LuongAttention. Received: {attention!r}"
            )
        return clone(attention, "attention", self.dtype_policy)

    def _make_encoder(self):
        self.source_embedding = keras.layers.Embedding(
            self.vocabulary_size,
            self.embedding_dim,
            embeddings_initializer=self._embeddings_initializer(),
            name="source_embedding",
            dtype=self.dtype_policy,
        )
        self.source_embedding.build((None, None))
        self.encoder = RecurrentEncoder(
            self.hidden_dim,
            self.num_layers,
            self.cell,
            bidirectional=self.bidirectional,
            dropout=self.dropout,
            name="encoder",
            dtype=self.dtype_policy,
        )
        self.encoder.build((None, None, self.embedding_dim))

    def _make_decoder(self, attention):
        self.target_embedding = keras.layers.ReversibleEmbedding(
            self.target_vocabulary_size,
            self.embedding_dim,
            tie_weights=self.tie_embeddings,
            embeddings_initializer=self._embeddings_initializer(),
            reverse_dtype="float32",
            name="target_embedding",
            dtype=self.dtype_policy,
        )
        self.target_embedding.build((None, None))
        self.decoder = RecurrentDecoder(
            self.hidden_dim,
            self.num_layers,
            self.cell,
            attention=attention,
            context_dim=self.encoder.output_dim,
            output_dim=self.embedding_dim,
            initial_state=self.initial_state,
            dropout=self.dropout,
            name="decoder",
            dtype=self.dtype_policy,
        )
        self.decoder.build((None, None, self.embedding_dim))

    def _embeddings_initializer(self):
        return keras.initializers.RandomNormal(stddev=self.embedding_dim**-0.5)

    def _embed(self, embedding, token_ids):
        """As Vaswani et al. 2017, 3.4: what enters the cells has variance 1, the logits less."""
        return embedding(token_ids) * self.embedding_dim**0.5

    def call(self, inputs, return_attention_scores: bool = False, training: bool | None = None):
        _check_names(inputs)
        mask = real_tokens(inputs["source_ids"], self.source_pad_token_id)
        memory, states = self._encode(inputs["source_ids"], mask, training)
        embedded = self._embed(self.target_embedding, inputs["target_ids"])  # (B, T, E)
        attends = return_attention_scores and self.decoder.attention is not None
        output = self.decoder(
            embedded, memory, states, return_attention_scores=attends, training=training
        )
        scores = {}
        if attends:
            output, weights = output
            scores[self.decoder.attention.name] = weights[:, None]  # (B, 1, T, S)
        logits = self._logits(output)  # (B, T, V)
        return (logits, scores) if return_attention_scores else logits

    def _encode(self, source_ids, mask, training=None):
        """What the decoder reads at every step, and its first states."""
        embedded = self._embed(self.source_embedding, source_ids)
        values, last_states = self.encoder(embedded, mask=mask, training=training)
        memory = self.decoder.remember(values, last_states, mask)
        return memory, self.decoder.first_states(last_states)

    def start(self, inputs, max_new_tokens: int):
        """Encodes right-padded sources, once, and reads the start token.

        Args:
            inputs: `source_ids` (B, S) and, optionally, `lengths` (B,).
            max_new_tokens: How many steps may follow.

        Returns:
            Logits (B, V) of each row's first token, and the state: with an attention it keeps
            `attention_scores` (B, max_new_tokens, S), the weights that each token was chosen with.
        """
        source_ids = inputs["source_ids"]
        batch, length = ops.shape(source_ids)
        memory, states = self._encode(source_ids, self._source_mask(inputs))
        position = ops.zeros((batch,), "int32")
        state = {"memory": memory, "recurrent": states, "position": position}
        if self.decoder.attention is not None:
            state["attention_scores"] = ops.zeros((batch, max_new_tokens, length), "float32")
        first = ops.broadcast_to(ops.cast(self.start_token_id, "int32"), (batch,))
        return self.step(first, state)

    def _source_mask(self, inputs):
        """Where the sources are no padding, by its id and by their `lengths`, if given."""
        source_ids = inputs["source_ids"]
        mask = real_tokens(source_ids, self.source_pad_token_id)
        if "lengths" in inputs:
            places = ops.arange(ops.shape(source_ids)[1], dtype="int32")
            within = places[None, :] < inputs["lengths"][:, None]
            mask = within if mask is None else ops.logical_and(mask, within)
        return mask

    def step(self, tokens, state):
        """Reads one token of each row: tokens (B,) -> logits (B, V) of the next, and the state."""
        output, states, weights = self.decoder.step(
            self._embed(self.target_embedding, tokens), state["memory"], state["recurrent"]
        )
        position = state["position"]
        state = {**state, "recurrent": states, "position": position + 1}
        if weights is not None:
            kept = state["attention_scores"]
            # Not a slice update: those need XLA, which a server turns off.
            place = ops.arange(ops.shape(kept)[1], dtype="int32")[None, :]
            here = ops.equal(place, position[:, None])[..., None]
            state["attention_scores"] = ops.where(here, weights[:, None], kept)
        return self._logits(output), state

    def _logits(self, output):
        return self.target_embedding(output, reverse=True)

    def prompt_inputs(self, token_ids, lengths):
        return {"source_ids": token_ids, "lengths": lengths}

    continues_prompt = False

    def read_state(self, state):
        return {name: state[name] for name in ("attention_scores",) if name in state}

    def room(self, lengths):
        if self.start_token_id is None:
            raise ValueError(
                "To generate, a Seq2Seq must know which token stands before a target: build it "
                "with `start_token_id=` or with a tokenizer that has one."
            )
        return np.full(np.shape(lengths), self.max_sequence_length)

    @property
    def prompt_vocabulary_size(self):
        return self.vocabulary_size

    @property
    def prompt_pad_token_id(self):
        return self.source_pad_token_id

    @property
    def output_vocabulary_size(self):
        return self.target_vocabulary_size

    @property
    def output_tokenizer(self):
        return self.tokenizer if self.target_tokenizer is None else self.target_tokenizer

    def check_inputs(self, inputs):
        _check_names(inputs)
        check_ids("source_ids", inputs["source_ids"], self.vocabulary_size)
        check_ids("target_ids", inputs["target_ids"], self.target_vocabulary_size)
        rows = {name: len(inputs[name]) for name in ("source_ids", "target_ids")}
        if len(set(rows.values())) > 1:
            raise ValueError(f"Sources and targets must be as many. Received: {rows}")
        lengths = {name: inputs[name].shape[1] for name in rows}
        if not all(lengths.values()):
            raise ValueError(
                f"Sources and targets must be at least one token long. Received: lengths {lengths}"
            )

    def check_targets(self, inputs, targets):
        check_targets(targets, inputs["target_ids"].shape, self.target_vocabulary_size)

    def compute_output_shape(self, inputs_shape):
        return (*inputs_shape["target_ids"], self.target_vocabulary_size)


def _check_names(inputs):
    if not isinstance(inputs, dict) or not {"source_ids", "target_ids"} <= set(inputs):
        received = sorted(inputs) if isinstance(inputs, dict) else type(inputs).__name__
        raise ValueError(
            "A Seq2Seq takes a dictionary of `source_ids` (B, S) and `target_ids` (B, T). "
            f"Received: {received}"
        )
