"""Law 1: the constructor is the configuration; building and calling make the same layer."""

import inspect
import json

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.layers.position_bias import PositionBias
from tests.contract.cases import CASES, built, copy_weights, half
from tests.contract.running import call

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def _constructor_arguments(cls):
    """{name: default} of what the class itself takes, without Keras' own."""
    parameters = inspect.signature(cls.__init__).parameters.values()
    return {p.name: p.default for p in parameters if p.name != "self" and p.kind != p.VAR_KEYWORD}


def test_every_public_layer_has_a_case():
    public = {getattr(keras_tx.layers, name) for name in keras_tx.layers.__all__}
    layers = {cls for cls in public if issubclass(cls, keras.layers.Layer)}
    # They take integers: tests/layers/test_position_bias.py.
    layers = {cls for cls in layers if not issubclass(cls, PositionBias)}
    assert layers - {case.layer_class for case in CASES} == set()


@pytest.mark.parametrize(
    "cls", dict.fromkeys(case.layer_class for case in CASES), ids=lambda cls: cls.__name__
)
def test_every_argument_has_a_case_where_it_is_not_the_default(cls):
    seen = set()
    for case in CASES:
        if case.layer_class is cls:
            config = case.template.get_config()
            defaults = _constructor_arguments(cls)
            seen |= {name for name, default in defaults.items() if config[name] != default}
    assert seen == set(_constructor_arguments(cls))


@every_case
def test_config_is_the_constructor_and_gives_the_same_layer(case):
    layer = built(case)
    config = layer.get_config()
    base = set(keras.layers.Layer().get_config())
    assert set(config) - base == set(_constructor_arguments(case.layer_class)) - base
    assert json.loads(json.dumps(config)) == config

    copy = case.layer_class.from_config(config)
    assert copy.get_config() == config
    copy.build(**case.build_shapes())
    copy_weights(layer, copy)
    inputs = case.inputs()
    np.testing.assert_array_equal(call(copy, inputs), call(layer, inputs))


@every_case
def test_numbers_may_be_numpys(case):
    config = case.template.get_config()
    kinds = {int: np.int64, float: np.float64, bool: np.bool_}
    numbers = {k: kinds[type(v)](v) if type(v) in kinds else v for k, v in config.items()}
    copy = case.layer_class.from_config(numbers).get_config()
    assert copy == config and json.loads(json.dumps(copy)) == config


@every_case
def test_building_is_calling(case):
    keras.utils.set_random_seed(31)
    by_build = case.make(name="subject")
    by_build.build(**case.build_shapes())
    keras.utils.set_random_seed(31)
    by_call = case.make(name="subject")
    call(by_call, case.inputs())
    assert by_build.built and by_call.built
    assert [w.path for w in by_build.weights] == [w.path for w in by_call.weights]
    for left, right in zip(by_build.trainable_weights, by_call.trainable_weights, strict=True):
        np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (left, right)))
    paths = [w.path for w in by_build.weights]
    assert len(set(paths)) == len(paths)


def check_parts(owner):
    config = owner.get_config()
    attributes = {**vars(owner), **vars(owner).get("_modules", {})}  # where PyTorch puts them
    parts = {k: v for k, v in attributes.items() if isinstance(v, keras.layers.Layer)}
    assert len(parts) == len(owner._layers)
    for name, part in parts.items():
        if not isinstance(config.get(name), dict):  # else it is the user's: named and typed by them
            assert part.name == name
            policy = "float32" if name == "router" else owner.dtype_policy.name
            assert part.dtype_policy.name == policy, name
        if type(part).__module__.startswith("keras_tx."):
            check_parts(part)


@every_case
def test_children_are_named_and_typed_by_their_owner(case):
    check_parts(half(case, "bfloat16"))


@every_case
def test_children_have_initializers_of_their_own(case):
    layer = case.make(name="subject")
    layer.build(**case.build_shapes())
    kernels = [
        child.kernel_initializer
        for child in layer._flatten_layers(include_self=False)
        if isinstance(child, keras.layers.Dense)
    ]
    assert len({id(kernel) for kernel in kernels}) == len(kernels)


def test_equal_shapes_begin_with_different_numbers():
    block = keras_tx.layers.TransformerBlock(2, 6, use_bias=False, kernel_initializer="he_normal")
    block.build((None, None, 6))
    inner, output = (
        d.kernel for d in (block.feed_forward.inner_dense, block.attention.output_dense)
    )
    assert inner.shape == output.shape == (6, 6)
    assert np.abs(keras.ops.convert_to_numpy(inner - output)).max() > 0.1


@pytest.mark.parametrize("cls", [keras_tx.GPT, keras_tx.layers.TransformerBlock])
def test_a_subclass_may_have_arguments_of_its_own(cls):
    class Mine(cls):
        def __init__(self, extra=1, **kwargs):
            super().__init__(**kwargs)
            self.extra = extra

    class Any(cls):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)

    sizes = {"num_heads": 2, "intermediate_dim": 7}
    if cls is keras_tx.GPT:
        sizes |= {"vocabulary_size": 5, "num_layers": 1, "hidden_dim": 4}
    assert Mine(extra=3, **sizes).get_config()["extra"] == 3
    assert Any(**sizes).get_config()["name"]
    with pytest.raises(ValueError, match="num_heads"):
        Mine(**{**sizes, "num_heads": -1})
