"""Law 8: runs through XLA, and lowers for machines that this one is not."""

import keras
import numpy as np
import pytest

from tests.contract.cases import CASES, built, twin
from tests.contract.running import (
    assert_close,
    call,
    call_eagerly,
    compiled,
    jax_gradients,
    tensors,
)

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@every_case
def test_compiled_equals_eager(case):
    # On PyTorch there is nothing to compile: it runs the same function twice.
    inputs = case.inputs()
    masks = tensors(case.ragged(inputs))
    run = compiled(built(case), **masks)
    assert_close(run(inputs), call_eagerly(built(case), inputs, **masks))


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="A TensorFlow compiler flag")
@every_case
def test_a_training_step_compiles(case):
    import tensorflow as tf

    layer, inputs = built(case), tensors(case.inputs())
    masks = tensors(case.ragged(case.inputs()))
    weights = [weight.value for weight in layer.trainable_weights]

    @tf.function(jit_compile=True)
    def step(inputs):
        first, *others = inputs
        with tf.GradientTape() as tape:
            tape.watch(list(inputs.values()))
            output = layer(inputs[first], **{name: inputs[name] for name in others}, **masks)
            loss = tf.reduce_sum(output**2) + sum(layer.losses, 0.0)
        return tape.gradient(loss, [inputs, weights])

    for found in tf.nest.flatten(step(inputs)):
        assert np.isfinite(tf.convert_to_tensor(found).numpy()).all()


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="Only JAX lowers without the device")
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@every_case
def test_forward_and_gradient_lower_for_cuda_and_tpu(case, dtype):
    import jax
    import jax.export

    layer = built(case) if dtype == "float32" else twin(case, dtype=dtype)
    inputs = tensors(case.inputs())
    masks = tensors(case.ragged(case.inputs()))
    values = [weight.value for weight in layer.trainable_weights]
    cotangent = np.ones(call(layer, case.inputs()).shape, "float32")
    function = jax_gradients(layer, masks)
    gradient = jax.jit(function)
    for platform in ("cuda", "tpu"):
        exported = jax.export.export(gradient, platforms=[platform])(inputs, values, cotangent)
        assert exported.platforms == (platform,)

    def forward(inputs):
        first, *others = inputs
        return layer(inputs[first], **{name: inputs[name] for name in others}, **masks)

    for platform in ("cuda", "tpu"):
        jax.export.export(jax.jit(forward), platforms=[platform])(inputs)
