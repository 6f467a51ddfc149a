"""Law 2: padding, masks and the other rows of the batch change nothing."""

import warnings

import keras
import numpy as np
import pytest

from tests.contract.cases import CASES, T, built, half, zeroed
from tests.contract.running import (
    arrays,
    assert_close,
    call,
    call_eagerly,
    gradients,
    mask_of,
    staged,
    tensors,
)

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
PADDING = 3
masked_cases = pytest.mark.parametrize(
    "case", [case for case in CASES if case.masks], ids=lambda case: case.name
)
sequence_cases = pytest.mark.parametrize(
    "case", [c for c in CASES if c.length_axes and not c.pools], ids=lambda case: case.name
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
    if "padding_mask" in masks and not case.pools:
        got, expected = got[masks["padding_mask"]], expected[masks["padding_mask"]]
    assert_close(got, expected)
    if case.name == "moe":
        return  # masks only its balance loss: see tests/layers/test_moe_ffn.py
    unmasked = call(layer, inputs)
    assert np.abs(unmasked - call(layer, inputs, **tensors(masks))).max() > 1e-3


@masked_cases
def test_what_is_no_number_at_masked_places_stays_there(case):
    inputs, layer = case.inputs(), built(case)
    masks = case.ragged(inputs)
    changed = dict(inputs)
    for argument, name in case.masks.items():
        changed[name] = np.where(masks[argument][..., None], inputs[name], np.float32("nan"))
    got, expected = (call(layer, x, **tensors(masks)) for x in (changed, inputs))
    if "padding_mask" in masks and not case.pools:
        got, expected = got[masks["padding_mask"]], expected[masks["padding_mask"]]
    assert_close(got, expected)


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
    if case.has_scores:
        _, scores = call(layer, inputs, return_attention_scores=True, **flags)
        assert not scores[0].any() and np.isfinite(scores).all()


@pytest.mark.parametrize(
    "case, dtype",
    [(case, "float32") for case in CASES if case.masks]
    + [(case, "bfloat16") for case in CASES if case.name in ("bahdanau", "block_of_parts")],
    ids=lambda value: getattr(value, "name", value),
)
def test_implicit_masks_are_explicit_masks(case, dtype):
    layer = built(case) if dtype == "float32" else half(case, dtype)
    masks = case.ragged(case.inputs())
    inputs = zeroed(case, case.inputs(), masks)
    expected = call(layer, inputs, **tensors(masks))
    got = call(layer, inputs, masked=case.masks.values())
    assert_close(got, expected, 1e-5 if dtype == "float32" else 2e-2)


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.masks and c.name != "moe"], ids=lambda case: case.name
)
def test_an_explicit_mask_wins(case):
    masks = case.ragged(case.inputs())
    inputs = zeroed(case, case.inputs(), masks)
    everything = tensors({argument: np.ones_like(mask) for argument, mask in masks.items()})
    layer = built(case)
    got = call(layer, inputs, masked=case.masks.values(), **everything)
    assert_close(got, call(layer, inputs, **everything))


@masked_cases
def test_inputs_stay_as_they_are(case):
    inputs = zeroed(case, case.inputs(), case.ragged(case.inputs()))

    def check(given):
        carrying = dict(given)
        for name in case.masks.values():
            carrying[name] = keras.layers.Masking()(given[name])
        marks = {name: mask_of(value) for name, value in carrying.items()}
        assert all(marks[name] is not None for name in case.masks.values())
        call_eagerly(built(case), carrying)
        for name, value in carrying.items():
            assert mask_of(value) is marks[name]
        return carrying

    given = tensors(inputs)
    assert_close(arrays(staged(check, given)), inputs, 0.0)
    assert_close(arrays(given), inputs, 0.0)


@pytest.mark.parametrize(
    "case",
    [c for c in CASES if c.length_axes.get("x") == 1 and not c.pools],
    ids=lambda case: case.name,
)
def test_the_mask_of_the_input_is_passed_on(case):
    inputs = case.inputs()
    inputs["x"] = np.where(np.arange(T)[None, :, None] < 3, inputs["x"], np.float32(0))

    def masks(inputs):
        x = keras.layers.Masking()(inputs["x"])
        return mask_of(x), mask_of(call_eagerly(built(case), {**inputs, "x": x}))

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*does not support masking")
        np.testing.assert_array_equal(*arrays(staged(masks, tensors(inputs))))


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
