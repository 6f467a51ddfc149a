"""The table variant x cache for decoders that read a source: steps, beside all tokens at once.

A ragged batch of sources: empty, of 1, 7 and 64 tokens, and of the full length. What is made of
them once (states, keys, values) is all that the steps see.
"""

import functools

import keras
import numpy as np
from keras import ops

import keras_tx as ktx
from keras_tx import layers
from tests.models import tools
from tests.models.cache_table import LENGTHS, NEW, call, stepwise

PAD, START = 0, 1


class CrossDecoder(keras.Model):
    """Two blocks that attend to the targets before, and to the embedded source."""

    def __init__(self, **of_block):
        super().__init__()
        self.embedding = keras.layers.Embedding(tools.VOCABULARY, 8)
        arguments = {"causal": True, "cross_attention": True, "position": layers.RotaryEncoding()}
        self.blocks = [
            layers.TransformerBlock(4, 7, **arguments, **of_block, name=f"block_{number}")
            for number in range(2)
        ]
        self.head = keras.layers.Dense(tools.VOCABULARY)
        self({"source_ids": ops.ones((1, 3), "int32"), "target_ids": ops.ones((1, 2), "int32")})

    def call(self, inputs, training=False):
        real = ops.not_equal(inputs["source_ids"], PAD)
        source, x = map(self.embedding, (inputs["source_ids"], inputs["target_ids"]))
        for block in self.blocks:
            x = block(x, source, context_mask=real, training=training)
        return self.head(x)

    def start(self, inputs, max_new_tokens):
        source = self.embedding(inputs["source_ids"])
        real = ops.not_equal(inputs["source_ids"], PAD)
        batch = source.shape[0]
        state = {
            "real": real,
            "memories": [b.cross_attention.project_context(source, real) for b in self.blocks],
            "caches": [b.attention.empty_cache(batch, max_new_tokens + 1, 8) for b in self.blocks],
            "position": ops.zeros((batch,), "int32"),
        }
        return self.step(ops.full((batch,), START), state)

    def step(self, tokens, state):
        x, caches = self.embedding(tokens[:, None]), []
        layers_state = zip(self.blocks, state["memories"], state["caches"], strict=True)
        for block, memory, cache in layers_state:
            x, cache = block(
                x,
                memory=memory,
                context_mask=state["real"],
                cache=cache,
                cache_index=state["position"],
            )
            caches.append(cache)
        return self.head(x)[:, 0], {**state, "caches": caches, "position": state["position"] + 1}


def seq2seq(**arguments):
    return ktx.Seq2Seq(
        tools.VOCABULARY, hidden_dim=6, pad_token_id=PAD, start_token_id=START, **arguments
    )


VARIANTS = {
    "cross": CrossDecoder,
    "cross, grouped, norms": lambda: CrossDecoder(num_key_value_heads=2, normalization="rms"),
    "GRU, Bahdanau": seq2seq,
    "GRU, fixed vector": lambda: seq2seq(attention=None, bidirectional=False),
    "LSTM, Bahdanau": lambda: seq2seq(cell="lstm", num_layers=2),
    "LSTM, Luong": lambda: seq2seq(cell="lstm", attention="luong", initial_state="last"),
    "GRU, Luong": lambda: seq2seq(num_layers=2, attention="luong", initial_state="zeros"),
}


@functools.cache
def make(name):
    return tools.randomize(VARIANTS[name]())


def sources():
    """Right-padded ids (5, S)."""
    token_ids = tools.tokens(len(LENGTHS), LENGTHS.max(), low=1)
    token_ids[np.arange(LENGTHS.max()) >= LENGTHS[:, None]] = PAD
    return token_ids


def cached(model, source_ids, following):
    """Logits (5, NEW + 1, V) from `start` and NEW steps."""

    def run(source_ids, following):
        logits, state = model.start({"source_ids": source_ids}, NEW)
        return stepwise(model, logits, state, following)

    return call(model, run, source_ids, following)


def row(name):
    """The largest relative difference of a variant."""
    model, source_ids = make(name), sources()
    following = tools.tokens(len(LENGTHS), NEW, low=1, seed=6)
    target_ids = np.pad(following, ((0, 0), (1, 0)), constant_values=START)
    expected = tools.forward(model)({"source_ids": source_ids, "target_ids": target_ids})
    actual = cached(model, source_ids, following)
    return np.abs(actual - expected).max() / max(1.0, np.abs(expected).max())
