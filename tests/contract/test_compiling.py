"""Law 8: runs through XLA, and lowers for machines that this one is not.

On JAX every other check of this folder runs compiled.
"""

import keras
import numpy as np
import pytest

from tests.contract.cases import CASES, built, half, twin
from tests.contract.running import (
    arrays,
    assert_close,
    call,
    call_eagerly,
    jax_gradients,
    outputs,
    tensors,
)

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
on_tensorflow = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="tf.function has jit_compile"
)
on_jax = pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="Only JAX lowers for devices that are not there"
)


@on_tensorflow
@every_case
def test_a_training_step_compiles(case):
    import tensorflow as tf

    layer, inputs = twin(case), tensors(case.inputs())
    masks = tensors(case.ragged(case.inputs()))
    weights = [weight.value for weight in layer.trainable_weights]

    @tf.function(jit_compile=True)
    def step(inputs):
        with tf.GradientTape() as tape:
            tape.watch(list(inputs.values()))
            output = call_eagerly(layer, inputs, training=False, **masks)
            loss = tf.reduce_sum(output**2)
        return output, tape.gradient(loss, [inputs, weights])

    output, found = step(inputs)
    assert_close(arrays(output), call(built(case), case.inputs(), **masks))
    for gradient in tf.nest.flatten(found):
        assert np.isfinite(tf.convert_to_tensor(gradient).numpy()).all()


@on_jax
def test_eager_equals_compiled():
    (case,) = (case for case in CASES if case.name == "block_pre")
    inputs = case.inputs()
    masks = tensors(case.ragged(inputs))
    assert_close(
        arrays(call_eagerly(built(case), inputs, **masks)), call(built(case), inputs, **masks)
    )


@on_jax
@pytest.mark.parametrize(
    "case, dtype",
    [(case, "float32") for case in CASES]
    + [(case, "bfloat16") for case in CASES if case.name.startswith(("block", "luong_concat"))],
    ids=lambda value: getattr(value, "name", value),
)
def test_forward_and_gradient_lower_for_cuda_and_tpu(case, dtype):
    import jax
    import jax.export

    layer = built(case) if dtype == "float32" else half(case, dtype)
    inputs = tensors(case.inputs())
    masks = tensors(case.ragged(case.inputs()))
    values = [weight.value for weight in layer.trainable_weights]
    shape = jax.eval_shape(lambda inputs: call_eagerly(layer, inputs, **masks), inputs).shape

    # The gradient computes the forward pass too.
    gradient = jax.jit(jax_gradients(layer, masks))
    exported = jax.export.export(gradient, platforms=["cuda", "tpu"])(
        inputs, values, np.ones(shape, "float32")
    )
    assert exported.platforms == ("cuda", "tpu")


def test_a_compiled_call_is_a_call():
    # What the other checks stand on: seeds move on, and weights are seen to change.
    (case,) = (case for case in CASES if case.name == "feed_forward")
    layer, inputs = twin(case), case.inputs()
    first, second = (arrays(outputs(layer, inputs, training=True)) for _ in range(2))
    assert (first != second).any()
    before = call(layer, inputs)
    layer.output_dense.bias.assign(np.full(layer.output_dense.bias.shape, 7.0))
    assert np.abs(call(layer, inputs) - before).min() > 1
