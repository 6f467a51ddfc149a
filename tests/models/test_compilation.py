"""Everything compiles: under XLA on TensorFlow, and for chips that are not here (law 8)."""

import keras
import numpy as np
import pytest
from keras import ops

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


PROMPTS = [
    np.array([[1, 2, 3, 0], [0, 0, 0, 0]], "int32"),
    np.array([3, 0], "int32"),
    np.array([5, 5], "int32"),
]


def generation(gpt):
    from keras_tx import decoding

    def run(token_ids, lengths, limits):
        return gpt.generate_ids(token_ids, lengths, limits, decoding.Greedy(), 5)

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

    def generate(values, *arguments):
        mapping = list(zip(model.variables, values, strict=True))
        with keras.StatelessScope(state_mapping=mapping):
            return generation(model)(*arguments)

    calls = [(forward, (trainable, x)), (jax.grad(loss), (trainable, x))]
    if is_gpt:
        calls.append((generate, ([v.value for v in model.variables], *PROMPTS)))
    for function, arguments in calls:
        exported = jax.export.export(jax.jit(function), platforms=platforms)(*arguments)
        assert exported.platforms == ("cuda", "tpu")
