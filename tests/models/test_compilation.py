"""Everything compiles: under XLA on TensorFlow, and for chips that are not here (law 8)."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_tx import decoding
from tests.models import tools

VARIANTS = ["rotary", "list"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_xla_on_tensorflow(variant, backend):
    if backend != "tensorflow":
        return  # JAX always compiles; PyTorch has no such switch
    x, y = tools.tokens(2, 7), tools.tokens(2, 7, seed=6)
    gpt = tools.make_gpt(variant, pad_token_id=0)
    logs, gradients = tools.gradients(gpt, x, y)
    compiled = {"jit_compile": True, "run_eagerly": False}
    compiled_logs, compiled_gradients = tools.gradients(gpt, x, y, **compiled)
    tools.assert_close(list(compiled_logs.values()), list(logs.values()))
    tools.assert_close(compiled_gradients, gradients)


def test_xla_on_tensorflow_of_vit_and_of_generation(backend):
    if backend != "tensorflow":
        return  # as above
    import tensorflow as tf

    vit = tools.make_vit(position="sinusoidal")
    run = tf.function(lambda x: vit(x), jit_compile=True)
    tools.assert_close(run(tools.images(2)), vit(tools.images(2)))

    gpt = tools.make_gpt("list", start_token_id=1, pad_token_id=0)
    run = tf.function(generation(gpt), jit_compile=True)
    arguments = [tf.constant(value) for value in PROMPTS]
    expected = gpt.generate([[1, 2, 3], []], max_new_tokens=5)
    assert run(*arguments)["token_ids"].numpy().tolist() == expected


def strategies():
    draft = tools.make_gpt(num_layers=1, start_token_id=1, pad_token_id=0)
    rules = {"repetition_penalty": 1.2, "no_repeat_ngram_size": 2, "banned_tokens": [7]}
    filters = {"top_k": 5, "top_p": 0.9, "min_p": 0.01, "typical_p": 0.9}
    return {
        "sample": decoding.Sample(0.8, **filters, **rules),
        "beam": decoding.Beam(3, num_results=2, **rules),
        "speculative": decoding.Speculative(draft, 2, strategy=decoding.Sample(0.8)),
    }


@pytest.mark.parametrize("name", ["sample", "beam", "speculative"])
def test_each_strategy_runs_in_a_graph_without_xla(name, backend):
    """As a server has it: sizes unknown, core operations."""
    if backend != "tensorflow":
        return  # what is served is a graph of TensorFlow, whatever trained it
    import tensorflow as tf

    gpt, strategy = tools.make_gpt("rotary", start_token_id=1, pad_token_id=0), strategies()[name]
    names = ("token_ids", "lengths", "limits")
    specs = [tf.TensorSpec((None,) * (1 + (name == "token_ids")), tf.int32) for name in names]
    run = tf.function(generation(gpt, strategy), specs, autograph=False)
    graph = run.get_concrete_function().graph.as_graph_def()
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    assert not [node.op for node in nodes if "Xla" in node.op]
    found = run(*map(tf.constant, PROMPTS))["token_ids"].numpy().tolist()
    arguments = {"strategy": strategy, "max_new_tokens": 5, "seed": [0, 0]}
    assert found == gpt.generate([[1, 2, 3], []], **arguments)


PROMPTS = [
    np.array([[1, 2, 3, 0], [0, 0, 0, 0]], "int32"),
    np.array([3, 0], "int32"),
    np.array([5, 5], "int32"),
]


def generation(gpt, strategy=None):
    def run(token_ids, lengths, limits):
        return gpt.generate_ids(token_ids, lengths, limits, strategy or decoding.Greedy(), 5)

    return run


@pytest.mark.parametrize("model", ["gpt", "vit"])
def test_lowering_for_chips_that_are_not_here(model, backend):
    if backend != "jax":
        return  # only JAX lowers for a platform that is absent
    import jax

    platforms = ["cuda", "tpu"]
    model = tools.make_gpt("list", pad_token_id=0) if model == "gpt" else tools.make_vit()
    is_gpt = hasattr(model, "generate")
    x = tools.tokens(2, 7) if is_gpt else tools.images(2)
    y = tools.tokens(2, 7, seed=6) if is_gpt else np.array([1, 2])
    trainable = [v.value for v in model.trainable_variables]
    others = [v.value for v in model.non_trainable_variables]

    def forward(trainable, x):
        return model.stateless_call(trainable, others, x, training=False)[0]

    def loss(trainable, x):
        logits, _ = model.stateless_call(trainable, others, x, training=True)
        return ops.mean(keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True))

    chosen = [None, *strategies().values()]

    def generate(values, *arguments):
        mapping = list(zip(model.variables, values, strict=True))
        with keras.StatelessScope(state_mapping=mapping):
            return [generation(model, strategy)(*arguments) for strategy in chosen]

    calls = [(forward, (trainable, x)), (jax.grad(loss), (trainable, x))]
    if is_gpt:
        calls.append((generate, ([v.value for v in model.variables], *PROMPTS)))
    for function, arguments in calls:
        exported = jax.export.export(jax.jit(function), platforms=platforms)(*arguments)
        assert exported.platforms == ("cuda", "tpu")
