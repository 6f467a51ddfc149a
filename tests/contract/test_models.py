"""Each layer inside a functional model of unknown lengths: symbolic shapes, fit, save and load."""

import functools

import keras
import numpy as np
import pytest

from tests.contract.cases import CASES, Case, built, copy_weights
from tests.contract.running import arrays, assert_close, call

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
    inputs = case.inputs()
    return {**inputs, **case.ragged(inputs)}


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


@pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
@every_case
def test_symbolic_shapes_and_dtypes_are_the_eager_ones(case, dtype):
    layer = case.make(name="subject", dtype=dtype)
    inputs = data(case)
    first, *others = inputs
    tensors = {name: keras.ops.convert_to_tensor(value) for name, value in inputs.items()}
    flags = [{}]
    if case.has_scores:
        flags.append({"return_attention_scores": True})
    for flag in flags:
        spec = placeholders(case)
        symbolic = layer(spec[first], **{name: spec[name] for name in others}, **flag)
        eager = layer(tensors[first], **{name: tensors[name] for name in others}, **flag)
        same(symbolic, eager, sizes=flag)

    shapes = {f"{name}_shape": value.shape for name, value in case.inputs().items()}
    output = layer(tensors[first], **{name: tensors[name] for name in others})
    assert layer.compute_output_shape(**shapes) == tuple(output.shape)
    unknown = layer.compute_output_shape(**case.build_shapes())
    assert len(unknown) == len(output.shape) and unknown[0] is None
    assert all(a is None or a == b for a, b in zip(unknown, output.shape, strict=True))


@every_case
def test_predicts_what_the_layer_gives(case):
    assert_close(functional(case).predict(data(case), verbose=0), call(built(case), data(case)))


@every_case
def test_comes_back_from_a_file(case, tmp_path):
    functional(case).save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")  # no custom_objects
    assert (
        loaded.get_layer("subject").get_config()
        == functional(case).get_layer("subject").get_config()
    )
    tensors = {name: keras.ops.convert_to_tensor(value) for name, value in data(case).items()}
    assert_close(arrays(loaded(tensors)), arrays(functional(case)(tensors)), 1e-6)


@every_case
def test_one_step_of_fit_moves_every_weight(case):
    model = keras.models.clone_model(functional(case))
    model.set_weights(functional(case).get_weights())
    model.compile(keras.optimizers.SGD(0.1), "mse")
    layer = model.get_layer("subject")
    before = arrays([w.value for w in layer.trainable_weights])
    target = np.random.default_rng(5).standard_normal(call(built(case), case.inputs()).shape)
    loss = model.train_on_batch(data(case), target)
    assert np.isfinite(loss)
    for weight, old in zip(layer.trainable_weights, before, strict=True):
        new = arrays(weight.value)
        assert np.isfinite(new).all() and (new != old).any(), weight.path
