"""Law 5: values in half precision are near those in float32, and dtypes are the policy's."""

import keras
import numpy as np
import pytest

from tests.contract.cases import CASES, built, half
from tests.contract.running import assert_close, call, gradients, outputs, tensors

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
EPSILON = {"bfloat16": 2.0**-8, "float16": 2.0**-11}


def rounded(inputs, dtype):
    """float32 numbers that the half precision holds exactly."""
    convert = keras.ops.convert_to_numpy
    return {
        name: convert(keras.ops.cast(keras.ops.cast(value, dtype), "float32"))
        for name, value in inputs.items()
    }


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@every_case
def test_half_precision_is_near_float32(case, dtype):
    layer = half(case, dtype)
    assert layer.compute_dtype == dtype
    assert all(w.dtype == "float32" for w in layer.trainable_weights)
    inputs = rounded(case.inputs(), dtype)
    masks = tensors(case.ragged(inputs))
    output = outputs(layer, inputs, **masks)
    assert keras.backend.standardize_dtype(output.dtype) == dtype
    expected = call(built(case), inputs, **masks)
    got = keras.ops.convert_to_numpy(keras.ops.cast(output, "float32"))
    assert_close(got, expected, case.tolerance * EPSILON[dtype])


@pytest.mark.parametrize("dtype", ["bfloat16"])
@pytest.mark.parametrize("case", [c for c in CASES if c.has_scores], ids=lambda case: case.name)
def test_scores_are_float32(case, dtype):
    layer = half(case, dtype)
    inputs = rounded(case.inputs(), dtype)
    masks = tensors(case.ragged(inputs))
    _, scores = outputs(layer, inputs, **masks, return_attention_scores=True)
    assert keras.backend.standardize_dtype(scores.dtype) == "float32"
    _, expected = call(built(case), inputs, **masks, return_attention_scores=True)
    scores = keras.ops.convert_to_numpy(scores)
    assert_close(scores, expected, case.tolerance * EPSILON[dtype])
    if not getattr(layer, "sinks", False):  # a softmax in float32 sums to 1
        assert_close(scores.sum(-1), expected.sum(-1), 1e-6)


@pytest.mark.parametrize(  # blocks are made of the others
    "case", [c for c in CASES if not c.name.startswith("block")], ids=lambda case: case.name
)
def test_gradients_in_bfloat16_are_near_float32(case):
    layer, inputs = half(case, "bfloat16"), rounded(case.inputs(), "bfloat16")
    masks = tensors(case.ragged(inputs))
    output = call(built(case), inputs, **masks)
    cotangent = np.random.default_rng(3).standard_normal(output.shape).astype("float32")
    got = gradients(layer, inputs, cotangent, **masks)
    expected = gradients(built(case), inputs, cotangent, **masks)
    assert_close(got, expected, 4 * case.tolerance * EPSILON["bfloat16"])
