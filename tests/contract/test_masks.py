"""Law 2: padding, masks and the other rows of the batch change nothing."""

import keras
import numpy as np
import pytest
from keras import ops

from tests.contract.cases import CASES, built
from tests.contract.running import arrays, assert_close, call, gradients, tensors

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
PADDING = 3
masked_cases = pytest.mark.parametrize(
    "case", [case for case in CASES if case.masks], ids=lambda case: case.name
)
sequence_cases = pytest.mark.parametrize(
    "case", [case for case in CASES if case.length_axes], ids=lambda case: case.name
)


def cotangent(output, seed=3):
    return np.random.default_rng(seed).standard_normal(output.shape).astype("float32")


def appended(array, axis, value):
    width = [(0, 0)] * array.ndim
    width[axis] = (0, PADDING)
    return np.pad(array, width, constant_values=value)


def cut(array, axis, length):
    return np.take(array, np.arange(length), axis=axis)


@sequence_cases
def test_appended_padding_changes_no_real_output_and_no_gradient(case):
    inputs, layer = case.inputs(), built(case)
    masks = case.ragged(inputs)
    expected = call(layer, inputs, **tensors(masks))
    weights = cotangent(expected)
    if "padding_mask" in masks:  # what stands at padded positions counts nowhere
        weights *= masks["padding_mask"][..., None]
    expected_gradients = gradients(layer, inputs, weights, **tensors(masks))

    unmasked = [name for name in case.length_axes if name not in case.masks.values()]
    padded = {k: appended(v, case.length_axes[k], 37.0) for k, v in inputs.items()}
    padded_masks = {k: appended(v, 1, False) for k, v in masks.items()}
    if not case.causal:  # nothing says which positions of these are padding
        padded.update({k: inputs[k] for k in unmasked if case.masks and k != "x"})
    first = next(iter(inputs))
    axis = case.length_axes[first]
    output = call(layer, padded, **tensors(padded_masks))
    length = inputs[first].shape[axis]
    assert_close(cut(output, axis, length), expected)

    if output.shape != expected.shape:
        weights = appended(weights, axis, 0.0)
    of_inputs, of_weights = gradients(layer, padded, weights, **tensors(padded_masks))
    assert_close(of_weights, expected_gradients[1])
    for name, found in of_inputs.items():
        own, real = case.length_axes[name], inputs[name].shape[case.length_axes[name]]
        assert_close(cut(found, own, real), expected_gradients[0][name])
        assert not np.take(found, np.arange(real, found.shape[own]), axis=own).any()


@masked_cases
def test_what_stands_at_masked_places_changes_nothing(case):
    inputs, layer = case.inputs(), built(case)
    masks = case.ragged(inputs)
    changed = dict(inputs)
    for argument, name in case.masks.items():
        changed[name] = np.where(masks[argument][..., None], inputs[name], -41.0).astype("float32")
    got, expected = (call(layer, x, **tensors(masks)) for x in (changed, inputs))
    if "padding_mask" in masks:
        got, expected = got[masks["padding_mask"]], expected[masks["padding_mask"]]
    assert_close(got, expected)
    if case.name.startswith("moe"):
        return  # masks only its balance loss: see tests/layers/test_moe_ffn.py
    unmasked = call(layer, inputs)
    assert np.abs(unmasked - call(layer, inputs, **tensors(masks))).max() > 1e-3


@masked_cases
def test_a_row_with_nothing_to_see_is_finite_and_so_are_its_gradients(case):
    inputs, layer = case.inputs(), built(case)
    masks = {argument: mask.copy() for argument, mask in case.ragged(inputs).items()}
    for mask in masks.values():
        mask[0] = False
    flags = {**tensors(masks)}
    output = call(layer, inputs, **flags)
    assert np.isfinite(output).all()
    assert_close(output[1:], call(layer, inputs, **tensors(case.ragged(inputs)))[1:])
    found = gradients(layer, inputs, cotangent(output), **flags)
    assert all(np.isfinite(g).all() for g in keras.tree.flatten(found))
    if "return_attention_scores" in layer._call_signature.parameters:
        _, scores = call(layer, inputs, return_attention_scores=True, **flags)
        assert not scores[0].any() and np.isfinite(scores).all()


def implicit(case, inputs, masks):
    """The inputs as tensors that carry their masks, zero where masked as `Masking` leaves them."""
    named = {name: masks[argument] for argument, name in case.masks.items()}
    found = {}
    for name, value in inputs.items():
        if name in named:
            value = np.where(named[name][..., None], value, 0.0).astype("float32")
            found[name] = keras.layers.Masking()(value)
            assert found[name]._keras_mask is not None
        else:
            found[name] = ops.convert_to_tensor(value)
    return found


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@masked_cases
def test_implicit_masks_are_explicit_masks(case, dtype):
    layer = case.make(name="subject", dtype=dtype)
    inputs = case.inputs()
    masks = case.ragged(inputs)
    carrying = implicit(case, inputs, masks)
    zeroed = {name: arrays(value) for name, value in carrying.items()}
    expected = call(layer, zeroed, **tensors(masks))
    assert_close(call(layer, carrying), expected, 1e-6)

    # Inside a compiled model the inputs are traced.
    spec = {name: keras.Input(value.shape[1:]) for name, value in inputs.items()}
    hidden = {
        name: keras.layers.Masking()(value) if name in case.masks.values() else value
        for name, value in spec.items()
    }
    first, *others = hidden
    model = keras.Model(spec, layer(hidden[first], **{name: hidden[name] for name in others}))
    predicted = model.predict(zeroed, verbose=0).astype("float32")
    assert_close(predicted, expected, 1e-5 if dtype == "float32" else 2e-2)


@masked_cases
def test_an_explicit_mask_wins(case):
    inputs, layer = case.inputs(), built(case)
    masks = case.ragged(inputs)
    carrying = implicit(case, inputs, masks)
    everything = {argument: np.ones_like(mask) for argument, mask in masks.items()}
    zeroed = {name: arrays(value) for name, value in carrying.items()}
    assert_close(
        call(layer, carrying, **tensors(everything)), call(layer, zeroed, **tensors(everything))
    )


@masked_cases
def test_inputs_stay_as_they_are(case):
    inputs, layer = case.inputs(), built(case)
    carrying = implicit(case, inputs, case.ragged(inputs))
    before = {name: arrays(value).copy() for name, value in carrying.items()}
    marks = {name: getattr(value, "_keras_mask", None) for name, value in carrying.items()}
    call(layer, carrying)
    call(layer, carrying, training=True)
    for name, value in carrying.items():
        np.testing.assert_array_equal(arrays(value), before[name])
        assert getattr(value, "_keras_mask", None) is marks[name]


@pytest.mark.parametrize(
    "case", [case for case in CASES if "x" in case.length_axes], ids=lambda case: case.name
)
def test_the_mask_of_the_input_is_passed_on(case):
    if len(case.shapes["x"]) != 3:
        pytest.skip("Its input is split into heads: a mask is not attached to it")
    inputs = case.inputs()
    x = keras.layers.Masking()(np.where(np.arange(5)[None, :, None] < 3, inputs["x"], 0.0))
    output = built(case)(x, **tensors({k: v for k, v in inputs.items() if k != "x"}))
    np.testing.assert_array_equal(arrays(output._keras_mask), arrays(x._keras_mask))


@every_case
def test_a_row_alone_is_the_row_in_the_batch(case):
    inputs, layer = case.inputs(), built(case)
    masks = case.ragged(inputs)
    expected = call(layer, inputs, **tensors(masks))
    for row in range(2):
        alone = {name: value[row : row + 1] for name, value in inputs.items()}
        own = {name: mask[row : row + 1] for name, mask in masks.items()}
        assert_close(call(layer, alone, **tensors(own)), expected[row : row + 1])


@every_case
def test_a_batch_of_one_and_a_sequence_of_one(case):
    inputs, layer = case.inputs(), built(case)
    short = {
        name: cut(value, case.length_axes[name], 1) if name in case.length_axes else value
        for name, value in inputs.items()
    }
    output = call(layer, short)
    shapes = {f"{name}_shape": value.shape for name, value in short.items()}
    assert output.shape == layer.compute_output_shape(**shapes)
    assert np.isfinite(output).all()
    if case.causal:
        assert_close(output, cut(call(layer, inputs), 1, 1))


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.equivariant], ids=lambda case: case.name
)
def test_without_positions_a_permutation_of_the_input_permutes_the_output(case):
    # Eq. 9.11
    inputs, layer = case.inputs(), built(case)
    order = np.array([3, 0, 4, 1, 2])
    permuted = {**inputs, "x": inputs["x"][:, order]}
    assert_close(call(layer, permuted), call(layer, inputs)[:, order])
