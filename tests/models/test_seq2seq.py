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
    "luong dot": {"attention": LuongAttention("dot"), "bidirectional": False},
    "fixed": {"attention": None, "initial_state": "last"},
    "fixed lstm, two layers": {"attention": None, "cell": "lstm", "num_layers": 2},
}


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
    def test_shapes_and_attention_scores(self, models, name):
        inputs, _ = batch()
        model = models[name]
        logits, scores = model(inputs, return_attention_scores=True)
        assert tuple(logits.shape) == (B, T, W)
        assert keras.backend.standardize_dtype(logits.dtype) == "float32"
        np.testing.assert_allclose(array(model(inputs)), array(logits), atol=1e-6)
        if model.decoder.attention is None:
            assert scores == {}
            return
        weights = array(scores["attention"])
        assert weights.shape == (B, 1, T, S)
        np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-5)
        assert not weights[1, :, :, 3:].any()

    def test_padding_changes_nothing(self, models, name):
        inputs, _ = batch()
        model = models[name]
        logits = array(model(inputs))
        wider = {"source_ids": pad(inputs["source_ids"]), "target_ids": pad(inputs["target_ids"])}
        np.testing.assert_allclose(array(model(wider))[:, :T], logits, atol=1e-5)
        for row in range(B):
            length = np.count_nonzero(inputs["source_ids"][row])
            alone = {
                "source_ids": inputs["source_ids"][row : row + 1, :length],
                "target_ids": inputs["target_ids"][row : row + 1],
            }
            np.testing.assert_allclose(array(model(alone))[0], logits[row], atol=1e-5)

    def test_no_step_sees_a_later_target(self, models, name):
        inputs, _ = batch()
        model = models[name]
        logits = array(model(inputs))
        changed = {**inputs, "target_ids": inputs["target_ids"].copy()}
        changed["target_ids"][:, 2] = 29
        after = array(model(changed))
        np.testing.assert_allclose(after[:, :2], logits[:, :2], atol=1e-6)
        assert np.abs(after[:, 2:] - logits[:, 2:]).max() > 1e-4

    def test_step_by_step_equals_teacher_forcing(self, models, name):
        inputs, _ = batch()
        model = models[name]
        logits, scores = model(inputs, return_attention_scores=True)
        lengths = np.count_nonzero(inputs["source_ids"], axis=1).astype("int32")
        garbage = np.where(inputs["source_ids"] == 0, 9, inputs["source_ids"])  # beyond lengths
        prompts = {
            "source_ids": ops.convert_to_tensor(garbage),
            "lengths": ops.convert_to_tensor(lengths),
        }
        stepped, state = model.start(prompts, T)
        for t in range(T):
            np.testing.assert_allclose(array(stepped), array(logits)[:, t], atol=1e-5)
            if t + 1 < T:
                token = ops.convert_to_tensor(inputs["target_ids"][:, t + 1])
                stepped, state = model.step(token, state)
        if model.decoder.attention is not None:
            kept = array(model.read_state(state)["attention_scores"])
            np.testing.assert_allclose(kept, array(scores["attention"])[:, 0], atol=1e-5)
        else:
            assert model.read_state(state) == {}

    def test_generate_a_row_alone_equals_the_row_in_a_batch(self, models, name):
        model = models[name]
        sources = [[5, 6, 7, 8, 9], [10], [11, 12, 13]]
        together = model.generate(sources, max_new_tokens=6, return_dict=True)
        assert all(len(row) <= 6 and END not in row for row in together["token_ids"])
        for number, source in enumerate(sources):
            assert model.generate(source, max_new_tokens=6) == together["token_ids"][number]
        if model.decoder.attention is not None:
            weights = together["attention_scores"]
            assert weights.shape[0] == 3
            length = together["lengths"][2]
            np.testing.assert_allclose(weights[2, :length, :3].sum(-1), 1.0, atol=1e-5)

    def test_one_step_moves_every_weight(self, name):
        model = large(make(name))
        before = [array(v).copy() for v in model.trainable_variables]
        inputs, labels = batch()
        model.compile(keras.optimizers.SGD(1.0), run_eagerly=True)  # a trace costs seconds
        history = model.fit(inputs, labels, verbose=0).history
        assert np.isfinite(history["loss"]).all()
        for variable, old in zip(model.trainable_variables, before, strict=True):
            assert (array(variable) != old).any(), variable.path

    def test_config_round_trip(self, models, name):
        model = models[name]
        copy = Seq2Seq.from_config(json.loads(json.dumps(model.get_config())))
        copy.set_weights(model.get_weights())
        inputs, _ = batch()
        np.testing.assert_array_equal(array(copy(inputs)), array(model(inputs)))
        assert copy.get_config() == model.get_config()


def test_loss_and_metrics_count_real_targets_alone():
    inputs, labels = batch()
    wider = {name: pad(ids) for name, ids in inputs.items()}
    results = []
    for x, y in ((inputs, labels), (wider, pad(labels))):
        model = make()
        model.compile(keras.optimizers.SGD(1.0), run_eagerly=True)
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
        model = make("bahdanau lstm, two layers")
        model.compile(keras.optimizers.SGD(1.0), **arguments)
        model.fit(inputs, labels, verbose=0)
        weights.append(model.get_weights())
    for eager, compiled in zip(*weights, strict=True):
        np.testing.assert_allclose(compiled, eager, atol=1e-5)


def test_a_source_of_padding_alone_gives_finite_logits_and_gradients():
    inputs, labels = batch()
    inputs["source_ids"][0] = 0
    for name in ("bahdanau", "luong, two layers", "fixed"):
        model = make(name)
        logits = array(model(inputs))
        assert np.isfinite(logits).all()
        wider = {**inputs, "source_ids": pad(inputs["source_ids"])}
        np.testing.assert_allclose(array(model(wider)), logits, atol=1e-5)
        model.compile("sgd", run_eagerly=True)
        model.fit(inputs, labels, verbose=0)
        assert all(np.isfinite(weight).all() for weight in model.get_weights())
        assert isinstance(model.generate([[], [5]], max_new_tokens=3)[0], list)


def test_length_one_and_batch_one(models):
    for model in models.values():
        logits = model({"source_ids": np.array([[7]]), "target_ids": np.array([[START]])})
        assert tuple(logits.shape) == (1, 1, W)


def test_gru_and_lstm_equal_keras(models):
    """Keras' own layers with copied weights, and so backwards and through padding."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((B, S, E)).astype("float32")
    mask = np.array([[True] * 5, [True] * 3 + [False] * 2, [True] + [False] * 4])
    for name, make_layer in (
        ("bahdanau", lambda: keras.layers.GRU(D, return_sequences=True, use_cudnn=False)),
        ("fixed lstm, two layers", lambda: keras.layers.LSTM(D, return_sequences=True)),
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
            if encoder.kind == "gru":
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
def test_low_precision(models, dtype):
    inputs, _ = batch()
    for name in ("bahdanau", "luong, two layers"):
        model = make(name, dtype=dtype)
        exact = make(name)
        model.set_weights(exact.get_weights())
        logits = model(inputs)
        assert keras.backend.standardize_dtype(logits.dtype) == "float32"
        np.testing.assert_allclose(array(logits), array(exact(inputs)), atol=0.02)
        assert len(model.generate([[5, 6]], max_new_tokens=2)) == 1


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
    assert make("fixed", initial_state="projected").count_params() == (
        encoder + embeddings + decoder + readout
    )
    assert Seq2Seq.from_size("seq2seq_mini", vocabulary_size=V).hidden_dim == 256
