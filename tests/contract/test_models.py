"""Each layer inside a functional model of unknown lengths: symbolic shapes, fit, save and load."""

import functools

import keras
import numpy as np
import pytest

from tests.contract.cases import CASES, Case, built, copy_weights, half, twin, zeroed
from tests.contract.running import arrays, assert_close, call, outputs, tensors

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def placeholders(case):
    """{argument: keras.Input} with the batch and the lengths unknown, the masks included."""
    found = {
        name: keras.Input(case.build_shapes()[f"{name}_shape"][1:], name=name)
        for name in case.shapes
    }
    for argument in case.masks:
        found[argument] = keras.Input((None,), dtype="bool", name=argument)
    return found


@functools.cache
def functional(case: Case):
    layer = case.make(name="subject")
    inputs = placeholders(case)
    first, *others = inputs
    output = layer(inputs[first], **{name: inputs[name] for name in others})
    model = keras.Model(inputs, output)
    copy_weights(built(case), layer)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def data(case):
    """The inputs, and the masks as tensors."""
    inputs = case.inputs()
    return inputs, tensors(case.ragged(inputs))


def same(symbolic, eager, sizes):
    """Whether shapes and dtypes agree, an unknown size with any."""
    keras.tree.assert_same_structure(symbolic, eager)
    for spec, array in zip(keras.tree.flatten(symbolic), keras.tree.flatten(eager), strict=True):
        assert spec.dtype == keras.backend.standardize_dtype(array.dtype)
        assert len(spec.shape) == len(array.shape)
        for known, size in zip(spec.shape, array.shape, strict=True):
            assert known is None or known == size, (spec.shape, array.shape)
        assert spec.shape[0] is None
        assert spec.shape[-1] == array.shape[-1] or spec.shape[-1] is None and sizes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@every_case
def test_symbolic_shapes_and_dtypes_are_the_eager_ones(case, dtype):
    layer = case.make(name="subject", dtype=None if dtype == "float32" else f"mixed_{dtype}")
    twin = built(case) if dtype == "float32" else half(case, dtype)
    inputs, masks = data(case)
    flags = [{}, {"return_attention_scores": True}] if case.has_scores else [{}]
    for flag in flags:
        spec = placeholders(case)
        first, *others = spec
        symbolic = layer(spec[first], **{name: spec[name] for name in others}, **flag)
        same(symbolic, outputs(twin, inputs, **masks, **flag), sizes=flag)

    shape = tuple(outputs(twin, inputs, **masks).shape)
    known = {f"{name}_shape": value.shape for name, value in inputs.items()}
    assert layer.compute_output_shape(**known) == shape
    unknown = layer.compute_output_shape(**case.build_shapes())
    assert len(unknown) == len(shape) and unknown[0] is None
    assert all(a is None or a == b for a, b in zip(unknown, shape, strict=True))


@every_case
def test_implicit_masks_pass_through_a_functional_model(case):
    masks = case.ragged(case.inputs())
    inputs = zeroed(case, case.inputs(), masks)
    spec = {name: keras.Input(value.shape[1:], name=name) for name, value in inputs.items()}
    hidden = dict(spec)
    for name in case.masks.values():
        hidden[name] = keras.layers.Masking()(spec[name])
    first, *others = hidden
    output = twin(case)(hidden[first], **{name: hidden[name] for name in others})
    got = keras.Model(spec, output).predict(inputs, verbose=0)
    assert_close(got, call(built(case), inputs, **tensors(masks)))


@every_case
def test_comes_back_from_a_file(case, tmp_path):
    functional(case).save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")  # no custom_objects
    layer = loaded.get_layer("subject")
    assert layer.get_config() == functional(case).get_layer("subject").get_config()
    inputs, masks = data(case)
    assert_close(call(layer, inputs, **masks), call(built(case), inputs, **masks), 1e-6)


@every_case
def test_one_step_of_fit_moves_every_weight(case):
    model = keras.models.clone_model(functional(case))
    model.set_weights(functional(case).get_weights())
    model.compile(keras.optimizers.SGD(0.1), "mse")
    layer = model.get_layer("subject")
    before = arrays([w.value for w in layer.trainable_weights])
    inputs, masks = data(case)
    target = np.random.default_rng(5).standard_normal(call(built(case), inputs, **masks).shape)
    loss = model.train_on_batch({**inputs, **arrays(masks)}, target)
    assert np.isfinite(loss)
    for weight, old in zip(layer.trainable_weights, before, strict=True):
        new = arrays(weight.value)
        assert np.isfinite(new).all() and (new != old).any(), weight.path
