"""Laws 3 and 4: what comes later changes nothing, and cached equals uncached."""

import keras
import numpy as np
import pytest
from keras import ops

from tests.contract.cases import CASES, D, T, built, half, twin
from tests.contract.running import arrays, assert_close, call, outputs

cached_cases = pytest.mark.parametrize(
    "case", [case for case in CASES if case.cached], ids=lambda case: case.name
)


@pytest.mark.parametrize(
    "case, training",
    [(c, training) for c in CASES if c.causal for training in ([False, True][: 1 + c.has_dropout])],
    ids=lambda value: getattr(value, "name", "training" if value is True else "inference"),
)
def test_a_later_input_changes_nothing_before_it(case, training):
    inputs = case.inputs()
    changed = {**inputs, "x": inputs["x"].copy()}
    changed["x"][:, 3:] += 11.0
    outputs = []
    for x in (inputs, changed):
        keras.utils.set_random_seed(7)  # the same dropout
        outputs.append(call(twin(case) if training else built(case), x, training=training))
    assert_close(outputs[1][:, :3], outputs[0][:, :3])
    assert np.abs(outputs[1][:, 3:] - outputs[0][:, 3:]).max() > 1e-2


def empty_cache(layer, batch, length):
    attention = getattr(layer, "attention", layer)
    return attention.empty_cache(batch, length, D)


@cached_cases
def test_steps_with_a_cache_equal_the_whole_sequence(case):
    layer, x = built(case), case.inputs()["x"]
    lengths = np.array([1, 3, 2])  # of the prompts, right-padded to 3
    prompt = np.where(np.arange(3)[None, :, None] < lengths[:, None, None], x[:, :3], 37.0)
    output, cache = outputs(
        layer,
        {"x": prompt.astype("float32")},
        cache=empty_cache(layer, len(x), T + 2),
        cache_index=ops.zeros((len(x),), "int32"),
    )
    output = arrays(output)
    expected = call(layer, {"x": x})
    for row, length in enumerate(lengths):
        assert_close(output[row, :length], expected[row, :length])

    for step in range(T - lengths.max()):
        place = lengths + step
        token = np.take_along_axis(x, place[:, None, None], axis=1)
        output, scores, cache = outputs(
            layer,
            {"x": token},
            cache=cache,
            cache_index=ops.convert_to_tensor(place, "int32"),
            return_attention_scores=True,
        )
        right = np.take_along_axis(expected, place[:, None, None], axis=1)
        assert_close(arrays(output), right)
        later = np.arange(T + 2)[None, :] > place[:, None]
        now = arrays(scores)[:, :, 0]
        assert not now[np.broadcast_to(later[:, None], now.shape)].any()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@cached_cases
def test_the_cache_has_the_compute_dtype_and_loses_nothing_to_it(case, dtype):
    layer, x = half(case, dtype), case.inputs()["x"]
    cache = empty_cache(layer, len(x), T)
    assert all(keras.backend.standardize_dtype(kept.dtype) == dtype for kept in cache)
    for place in range(T):
        output, cache = outputs(
            layer,
            {"x": x[:, place : place + 1]},
            cache=cache,
            cache_index=ops.full((len(x),), place, dtype="int32"),
        )
    assert all(keras.backend.standardize_dtype(kept.dtype) == dtype for kept in cache)
    epsilon = {"bfloat16": 2.0**-8, "float16": 2.0**-11}[dtype]
    # One query may take another path than many: it rounds elsewhere, as often.
    assert_close(arrays(output), call(layer, {"x": x})[:, -1:], case.tolerance * epsilon)
