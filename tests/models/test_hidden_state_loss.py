"""A loss from hidden states in chunks is added by a subclass; what `call` returns stays logits."""

import keras
import numpy as np
from keras import ops

import keras_tx as ktx
from tests.models import tools


def chunked_log_likelihood(hidden, embeddings, targets, chunk=4):
    """(2, M): log p(target) and correct, with never more than `chunk` rows of logits at once."""
    count, dim = ops.shape(hidden)[0], hidden.shape[-1]
    chunks = (count + chunk - 1) // chunk
    missing = chunks * chunk - count
    targets = ops.pad(ops.cast(targets, "int32"), ((0, missing),))

    def rows(x, index):
        return ops.slice(x, (index * chunk, 0), (chunk, dim))

    def targets_of(index):
        return ops.slice(targets, (index * chunk,), (chunk,))

    @ops.custom_gradient
    def log_likelihood(hidden, embeddings):
        padded = ops.pad(hidden, ((0, missing), (0, 0)))

        def logits(index):
            return ops.matmul(rows(padded, index), ops.transpose(embeddings))

        def forward(index, out):
            z, y = logits(index), targets_of(index)
            chosen = ops.take_along_axis(z, y[:, None], 1)[:, 0]
            right = ops.equal(ops.cast(ops.argmax(z, -1), "int32"), y)
            both = ops.stack([chosen - ops.logsumexp(z, -1), ops.cast(right, "float32")])
            return ops.slice_update(out, (0, index * chunk), both)

        out = ops.fori_loop(0, chunks, forward, ops.zeros((2, chunks * chunk)))[:, :count]

        def grad(*args, upstream=None):
            upstream = args[-1] if upstream is None else upstream
            upstream = ops.pad(upstream[0], ((0, missing),))

            def backward(index, carry):
                of_hidden, of_embeddings = carry
                z = logits(index)
                slope = ops.one_hot(targets_of(index), z.shape[-1]) - ops.softmax(z, -1)
                slope = slope * ops.slice(upstream, (index * chunk,), (chunk,))[:, None]
                of_hidden = ops.slice_update(
                    of_hidden, (index * chunk, 0), ops.matmul(slope, embeddings)
                )
                return of_hidden, of_embeddings + ops.matmul(
                    ops.transpose(slope), rows(padded, index)
                )

            first = (ops.zeros_like(padded), ops.zeros_like(embeddings))
            of_hidden, of_embeddings = ops.fori_loop(0, chunks, backward, first)
            return of_hidden[:count], of_embeddings

        return out, grad

    return log_likelihood(hidden, embeddings)


class ChunkedGPT(ktx.GPT):
    _gives_hidden_states = False

    def _logits(self, x):
        return self.output_norm(x) if self._gives_hidden_states else super()._logits(x)

    def log_likelihood(self, y_pred, y):
        hidden = ops.reshape(y_pred, (-1, self.hidden_dim))
        embeddings = ops.convert_to_tensor(self.token_embedding.embeddings)
        both = chunked_log_likelihood(hidden, embeddings, ops.reshape(y, (-1,)))
        return ops.reshape(both[0], ops.shape(y)), ops.reshape(both[1], ops.shape(y))

    def _with_hidden_states(self, step, *args, **kwargs):
        self._gives_hidden_states = True
        try:
            return step(*args, **kwargs)
        finally:
            self._gives_hidden_states = False

    def train_step(self, *args, **kwargs):
        return self._with_hidden_states(super().train_step, *args, **kwargs)

    def test_step(self, *args, **kwargs):
        return self._with_hidden_states(super().test_step, *args, **kwargs)


def test_training_is_that_of_the_logits(backend):
    x = tools.tokens(4, 7, low=1)
    x[1, 3:] = 0
    y = np.roll(x, -1, 1)
    weights = np.random.default_rng(1).uniform(0.5, 2.0, x.shape).astype("float32")

    def trained(model_class):
        gpt = tools.randomize(model_class(**tools.GPT_SIZES, pad_token_id=0))
        gpt.compile(keras.optimizers.SGD(0.1), jit_compile=backend != "torch")
        history = gpt.fit(x, y, 2, 2, 0, sample_weight=weights, shuffle=False).history
        evaluated = gpt.evaluate(x, y, batch_size=2, verbose=0, return_dict=True)
        return gpt, history, evaluated

    gpt, history, evaluated = trained(ktx.GPT)
    chunked, chunked_history, chunked_evaluated = trained(ChunkedGPT)
    tools.assert_close(chunked.get_weights(), gpt.get_weights())
    for name in ("loss", "accuracy"):
        tools.assert_close(chunked_history[name], history[name])
        tools.assert_close(chunked_evaluated[name], evaluated[name])
    logits = chunked.predict(x, verbose=0)
    assert logits.shape == (4, 7, tools.VOCABULARY)
    tools.assert_close(logits, gpt.predict(x, verbose=0))
