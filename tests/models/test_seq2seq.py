import json
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

from keras_tx.layers import BahdanauAttention, LuongAttention
from keras_tx.models import Seq2Seq

V, W, D, E = 31, 37, 11, 7  # source and target vocabulary, state, embedding
B, S, T = 3, 5, 4
START, END = 1, 2

SYSTEMS = {
    "bahdanau": {"attention": "bahdanau"},
    "bahdanau lstm, two layers": {
        "attention": BahdanauAttention(13),
        "cell": "lstm",
        "num_layers": 2,
        "initial_state": "last",
    },
    "luong, two layers": {"attention": "luong", "num_layers": 2, "initial_state": "zeros"},
    "luong concat lstm": {
        "attention": LuongAttention("concat", units=13),
        "cell": "lstm",
        "bidirectional": False,
    },
    "fixed, two layers": {"attention": None, "num_layers": 2, "tie_embeddings": False},
}
# Eager loops are slow on JAX, and traces on TensorFlow.
QUICK = {"run_eagerly": keras.backend.backend() != "jax"}


def make(name="bahdanau", **changes):
    keras.utils.set_random_seed(3)
    arguments = {
        "vocabulary_size": V,
        "hidden_dim": D,
        "embedding_dim": E,
        "target_vocabulary_size": W,
        "max_sequence_length": 16,
        "pad_token_id": 0,
        "start_token_id": START,
        "end_token_id": END,
    }
    return Seq2Seq(**{**arguments, **SYSTEMS[name], **changes})


def large(model):
    """Weights large enough to tell inputs apart."""
    rng = np.random.default_rng(5)
    for variable in model.trainable_variables:
        variable.assign(0.6 * rng.standard_normal(variable.shape).astype("float32"))
    return model


@pytest.fixture(scope="session")
def models():
    """One untrained model a system."""
    return {name: large(make(name)) for name in SYSTEMS}


@pytest.fixture(scope="session")
def outputs(models):
    """Logits and attention scores of each system for the batch."""
    found = {}
    for name, model in models.items():
        logits, scores = model(batch()[0], return_attention_scores=True)
        found[name] = array(logits), {key: array(value) for key, value in scores.items()}
    return found


def batch(seed=0):
    """Ragged sources and targets, padded with 0; the targets as the model should learn them."""
    rng = np.random.default_rng(seed)
    source = rng.integers(3, V, (B, S)).astype("int32")
    target = rng.integers(3, W, (B, T)).astype("int32")
    source[1, 3:] = 0
    source[2, 1:] = 0
    target_ids = np.concatenate([np.full((B, 1), START, "int32"), target[:, :-1]], axis=1)
    labels = target.copy()
    labels[1, 2:] = 0
    target_ids[1, 2:] = 0
    return {"source_ids": source, "target_ids": target_ids}, labels


def array(x):
    return ops.convert_to_numpy(x)


def pad(ids, count=3):
    return np.pad(ids, ((0, 0), (0, count)))


@pytest.mark.parametrize("name", SYSTEMS)
class TestEverySystem:
    def test_shapes_and_attention_scores(self, models, outputs, name):
        inputs, _ = batch()
        logits, scores = outputs[name]
        assert logits.shape == (B, T, W) and logits.dtype == np.float32
        np.testing.assert_allclose(array(models[name](inputs)), logits, atol=1e-6)
        if models[name].decoder.attention is None:
            assert scores == {}
            return
        weights = scores["attention"]
        assert weights.shape == (B, 1, T, S)
        np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-5)
        assert not weights[1, :, :, 3:].any()

    def test_padding_and_other_rows_change_nothing(self, models, outputs, name):
        inputs, _ = batch()
        logits, _ = outputs[name]
        wider = {"source_ids": pad(inputs["source_ids"]), "target_ids": pad(inputs["target_ids"])}
        np.testing.assert_allclose(array(models[name](wider))[:, :T], logits, atol=1e-5)
        alone = {
            "source_ids": inputs["source_ids"][1:2, :3],
            "target_ids": inputs["target_ids"][1:2],
        }
        np.testing.assert_allclose(array(models[name](alone))[0], logits[1], atol=1e-5)

    def test_no_step_sees_a_later_target(self, models, outputs, name):
        inputs, _ = batch()
        logits, _ = outputs[name]
        inputs["target_ids"][:, 2] = 29
        changed = array(models[name](inputs))
        np.testing.assert_allclose(changed[:, :2], logits[:, :2], atol=1e-6)
        assert np.abs(changed[:, 2:] - logits[:, 2:]).max() > 1e-4

    def test_step_by_step_equals_teacher_forcing(self, models, outputs, name):
        inputs, _ = batch()
        model = models[name]
        logits, scores = outputs[name]
        lengths = np.count_nonzero(inputs["source_ids"], axis=1).astype("int32")
        garbage = np.where(inputs["source_ids"] == 0, 9, inputs["source_ids"])  # beyond lengths
        prompts = {
            "source_ids": ops.convert_to_tensor(garbage),
            "lengths": ops.convert_to_tensor(lengths),
        }
        stepped, state = model.start(prompts, T)
        for t in range(T):
            np.testing.assert_allclose(array(stepped), logits[:, t], atol=1e-5)
            if t + 1 < T:
                token = ops.convert_to_tensor(inputs["target_ids"][:, t + 1])
                stepped, state = model.step(token, state)
        kept = model.read_state(state)
        assert set(kept) == ({"attention_scores"} if scores else set())
        if scores:
            kept = array(kept["attention_scores"])
            np.testing.assert_allclose(kept, scores["attention"][:, 0], atol=1e-5)

    def test_one_step_moves_every_weight(self, name):
        model = large(make(name))
        before = [array(v).copy() for v in model.trainable_variables]
        inputs, labels = batch()
        model.compile(keras.optimizers.SGD(1.0), **QUICK)
        history = model.fit(inputs, labels, verbose=0).history
        assert np.isfinite(history["loss"]).all()
        for variable, old in zip(model.trainable_variables, before, strict=True):
            assert (array(variable) != old).any(), variable.path

    def test_config_round_trip(self, models, outputs, name):
        model = models[name]
        copy = Seq2Seq.from_config(json.loads(json.dumps(model.get_config())))
        copy.set_weights(model.get_weights())
        np.testing.assert_array_equal(array(copy(batch()[0])), outputs[name][0])
        assert copy.get_config() == model.get_config()


@pytest.mark.parametrize("name", ["bahdanau lstm, two layers", "fixed, two layers"])
def test_generate_a_row_alone_equals_the_row_in_a_batch(models, name):
    model = models[name]
    sources = [[5, 6, 7, 8, 9], [10], [11, 12, 13]]
    together = model.generate(sources, max_new_tokens=6, return_dict=True)
    assert all(len(row) <= 6 and END not in row for row in together["token_ids"])
    assert model.generate(sources[2], max_new_tokens=6) == together["token_ids"][2]
    if model.decoder.attention is not None:
        weights = together["attention_scores"][2, : together["lengths"][2], :3]
        np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-5)


def test_loss_and_metrics_count_real_targets_alone():
    inputs, labels = batch()
    wider = {name: pad(ids) for name, ids in inputs.items()}
    results = []
    for x, y in ((inputs, labels), (wider, pad(labels))):
        model = make()
        model.compile(keras.optimizers.SGD(1.0), **QUICK)
        history = model.fit(x, y, verbose=0).history
        evaluations = [model.evaluate(x, y, batch_size=size, verbose=0) for size in (2, B)]
        np.testing.assert_allclose(*evaluations, rtol=1e-5)
        results.append([history["loss"], history["accuracy"], evaluations, *model.get_weights()])
    for first, second in zip(*map(keras.tree.flatten, results), strict=True):
        np.testing.assert_allclose(second, first, rtol=1e-4, atol=1e-5)


def test_compiled_training_equals_eager():
    """Under XLA where the backend has it."""
    inputs, labels = batch()
    weights = []
    for arguments in ({"run_eagerly": True}, {"jit_compile": keras.backend.backend() != "torch"}):
        model = make()
        model.compile(keras.optimizers.SGD(1.0), **arguments)
        model.fit(inputs, labels, verbose=0)
        weights.append(model.get_weights())
    for eager, compiled in zip(*weights, strict=True):
        np.testing.assert_allclose(compiled, eager, atol=1e-5)


def test_a_source_of_padding_alone_gives_finite_logits_and_gradients():
    inputs, labels = batch()
    inputs["source_ids"][0] = 0
    model = make()
    logits = array(model(inputs))
    wider = {**inputs, "source_ids": pad(inputs["source_ids"])}
    np.testing.assert_allclose(array(model(wider)), logits, atol=1e-5)
    model.compile("sgd", **QUICK)
    model.fit(inputs, labels, verbose=0)
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    assert isinstance(model.generate([[], [5]], max_new_tokens=3)[0], list)


def test_length_one_and_batch_one(models):
    logits = models["bahdanau"]({"source_ids": np.array([[7]]), "target_ids": np.array([[START]])})
    assert tuple(logits.shape) == (1, 1, W)


def test_gru_and_lstm_equal_keras(models):
    """Keras' own layers with copied weights, and so backwards and through padding."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((B, S, E)).astype("float32")
    mask = np.array([[True] * 5, [True] * 3 + [False] * 2, [True] + [False] * 4])
    for name, make_layer in (
        ("bahdanau", lambda: keras.layers.GRU(D, return_sequences=True, use_cudnn=False)),
        ("bahdanau lstm, two layers", lambda: keras.layers.LSTM(D, return_sequences=True)),
    ):
        encoder = models[name].encoder.layers[0]
        theirs = keras.layers.Bidirectional(make_layer())
        theirs.build((B, S, E))
        weights = []
        for dense, loop in (
            (encoder.input_dense, encoder.loop),
            (encoder.backward_input_dense, encoder.backward_loop),
        ):
            recurrent = loop.cell.recurrent_dense
            kernel, bias = array(dense.kernel), array(dense.bias).copy()
            if encoder.cell == "gru":
                weights += [kernel, array(recurrent.kernel)]
                weights += [np.stack([bias, array(recurrent.bias)])]
            else:
                bias[D : 2 * D] += 1.0  # the forget gate begins open
                weights += [kernel, array(recurrent.kernel), bias]
        theirs.set_weights(weights)
        ours, states = encoder(x, mask=mask)
        expected = array(theirs(x, mask=mask))
        np.testing.assert_allclose(array(ours)[mask], expected[mask], atol=1e-5)
        last = [expected[row, mask[row].sum() - 1, :D] for row in range(B)]
        np.testing.assert_allclose(array(states[0])[:, :D], last, atol=1e-5)
        np.testing.assert_allclose(array(states[0])[:, D:], expected[:, 0, D:], atol=1e-5)


def test_bahdanau_decoder_equals_the_paper(models):
    """A.1 and A.2.2 in float64, step by step."""
    model = models["bahdanau"]
    inputs, _ = batch()
    layer = model.decoder.layers[0]

    def dense(child, x):
        bias = array(child.bias).astype("float64") if child.use_bias else 0.0
        return x @ array(child.kernel).astype("float64") + bias

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    memory, states = model._encode(
        ops.convert_to_tensor(inputs["source_ids"]), ops.convert_to_tensor(inputs["source_ids"] > 0)
    )
    values, mask = array(memory["values"]).astype("float64"), array(memory["mask"])
    hidden = array(states[0][0]).astype("float64")
    embeddings = array(model.target_embedding.embeddings).astype("float64")
    expected = []
    for t in range(T):
        y = embeddings[inputs["target_ids"][:, t]] * E**0.5
        attention = model.decoder.attention
        scores = np.tanh(
            dense(attention.query_dense, hidden)[:, None] + dense(attention.key_dense, values)
        ) @ array(attention.score_vector).astype("float64")
        scores = np.where(mask, np.exp(scores[..., 0]), 0.0)
        context = np.einsum("bs,bsm->bm", scores / scores.sum(-1, keepdims=True), values)
        cell = layer.loop.cell
        z, r, n = np.split(dense(layer.input_dense, y) + dense(cell.context_dense, context), 3, -1)
        uz, ur, un = np.split(dense(cell.recurrent_dense, hidden), 3, -1)
        update, reset = sigmoid(z + uz), sigmoid(r + ur)
        hidden = update * hidden + (1 - update) * np.tanh(n + reset * un)
        read = np.tanh(dense(model.decoder.output_dense, np.concatenate([hidden, context, y], -1)))
        expected.append(read @ embeddings.T)
    np.testing.assert_allclose(array(model(inputs)), np.stack(expected, 1), atol=1e-4)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_low_precision(dtype):
    inputs, _ = batch()
    model, exact = make(dtype=dtype), make()
    model.set_weights(exact.get_weights())
    logits = model(inputs)
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    np.testing.assert_allclose(array(logits), array(exact(inputs)), atol=0.05)


def test_saved_and_loaded_in_a_fresh_process(models, tmp_path):
    inputs, _ = batch()
    model = models["bahdanau lstm, two layers"]
    model.save(tmp_path / "model.keras")
    np.savez(tmp_path / "batch.npz", logits=array(model(inputs)), **inputs)
    code = """
import sys, numpy as np, keras, keras_tx
folder = sys.argv[1]
model = keras.models.load_model(folder + "/model.keras")
data = np.load(folder + "/batch.npz")
logits = model({name: data[name] for name in ("source_ids", "target_ids")})
print(float(np.abs(keras.ops.convert_to_numpy(logits) - data["logits"]).max()))
"""
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert run.returncode == 0, run.stderr
    assert float(run.stdout.split()[-1]) < 1e-6


@pytest.mark.parametrize(
    "changes, match",
    [
        ({"cell": "rnn"}, "`cell` must be one of"),
        ({"initial_state": "first"}, "`initial_state` must be one of"),
        ({"attention": "dot"}, "`attention` must be"),
        ({"num_layers": 0}, "`num_layers` must be a positive integer"),
        ({"pad_token_id": 31}, "`pad_token_id` must be from 0 to 30.*Received: 31"),
        ({"start_token_id": 37}, "`start_token_id` must be from 0 to 36.*Received: 37"),
        ({"vocabulary_size": None}, "`vocabulary_size` or a `tokenizer`"),
        ({"attention": LuongAttention("dot")}, "last dimensions"),
    ],
)
def test_wrong_arguments(changes, match):
    with pytest.raises(ValueError, match=match):
        make(**changes)


def test_wrong_inputs(models):
    model = models["bahdanau"]
    inputs, _ = batch()
    with pytest.raises(ValueError, match="takes a dictionary"):
        model(inputs["source_ids"])
    with pytest.raises(ValueError, match="`source_ids` must be from 0 to 30"):
        model({**inputs, "source_ids": inputs["source_ids"] + V})
    with pytest.raises(ValueError, match="`target_ids` must be from 0 to 36"):
        model({**inputs, "target_ids": inputs["target_ids"] - 2})
    with pytest.raises(ValueError, match="must be as many"):
        model({**inputs, "target_ids": inputs["target_ids"][:1]})
    for name in inputs:
        with pytest.raises(ValueError, match=f"one token long. Received: .*'{name}': 0"):
            model({**inputs, name: inputs[name][:, :0]})
    with pytest.raises(ValueError, match="which token stands before a target"):
        make(start_token_id=None).generate([[5]])


def test_parameters():
    """One GRU layer of width D: 3 (E D + D D + 2 D); counted by hand."""
    encoder = 2 * 3 * (E * D + D * D + 2 * D)
    context, embeddings = 2 * D, V * E + W * E
    decoder = 3 * (E * D + D * D + 2 * D) + 3 * context * D + (context * D + D)
    readout = (D + context + E) * E + E
    attention = D * D + context * D + D
    assert make().count_params() == encoder + embeddings + decoder + readout + attention
    assert make(attention=None).count_params() == (encoder + embeddings + decoder + readout)
    assert Seq2Seq.from_size("seq2seq_mini", vocabulary_size=V).hidden_dim == 256


def test_initial_states(models):
    """The backward encoder's last state, a projection of both directions', or zeros."""
    rng = np.random.default_rng(2)
    last = [[rng.standard_normal((B, 2 * D)).astype("float32")] for _ in range(2)]
    tensors = [[ops.convert_to_tensor(state) for state in states] for states in last]
    zeros = models["luong, two layers"].decoder.first_states(tensors)
    assert not array(zeros[1][0]).any()
    projected = models["fixed, two layers"].decoder
    dense = projected.state_denses[1]
    expected = np.tanh(last[1][0] @ array(dense.kernel) + array(dense.bias))
    got = array(projected.first_states(tensors)[1][0])
    np.testing.assert_allclose(got, expected, atol=1e-5)
    got = models["bahdanau lstm, two layers"].decoder.first_states(tensors)
    np.testing.assert_array_equal(array(got[1][0]), last[1][0][:, D:])
