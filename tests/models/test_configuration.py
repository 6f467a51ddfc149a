"""Constructor, configuration, `.keras` files: what is saved is what was built (law 1)."""

import inspect
import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import ops

import keras_tx as ktx
from keras_tx import layers
from tests.models import tools

GPT_ARGUMENTS = {
    "vocabulary_size": np.int64(300),
    "num_layers": 1,
    "hidden_dim": 10,
    "num_heads": 4,
    "intermediate_dim": 7,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "max_sequence_length": 19,
    "position": "rotary",
    "block": None,
    "window": 5,
    "gated": True,
    "activation": "relu",
    "normalization": "rms",
    "normalization_order": "post",
    "tie_embeddings": False,
    "scale_embeddings": True,
    "embedding_normalization": True,
    "logit_soft_cap": 5.0,
    "dropout": 0.1,
    "layer_norm_epsilon": 1e-3,
    "use_bias": False,
    "kernel_initializer": "he_normal",
    "embeddings_initializer": keras.initializers.RandomNormal(stddev=0.5),
    "depth_scaled_initialization": True,
    "cache_dtype": "bfloat16",
    "tokenizer": ktx.data.train_tokenizer([], kind="byte"),
    "pad_token_id": 291,
    "start_token_id": 292,
    "end_token_id": 293,
    "name": "one_gpt",
    "dtype": "mixed_bfloat16",
    "trainable": False,
}
VIT_ARGUMENTS = {
    "num_classes": 3,
    "num_layers": 1,
    "hidden_dim": 8,
    "num_heads": 2,
    "intermediate_dim": 7,
    "image_size": (6, 9),
    "patch_size": [2, 3],
    "num_channels": 2,
    "pooling": "class_token_and_mean",
    "position": "sinusoidal",
    "num_register_tokens": 3,
    "distillation_token": True,
    "block": None,
    "gated": True,
    "activation": "relu",
    "normalization": "rms",
    "normalization_order": "post",
    "layer_scale": 0.3,
    "embedding_normalization": True,
    "dropout": 0.1,
    "stochastic_depth": 0.2,
    "layer_norm_epsilon": 1e-3,
    "use_bias": False,
    "pixel_mean": [0.2, 0.4],
    "pixel_std": (0.3, 0.6),
    "kernel_initializer": "he_normal",
    "class_names": ["no", "yes", "perhaps"],
    "name": "one_vit",
    "dtype": "mixed_float16",
    "trainable": False,
}
BLOCK = layers.TransformerBlock(2, 5, causal=True, position=layers.RotaryEncoding(), gated=True)
CASES = {
    "gpt": (ktx.GPT, GPT_ARGUMENTS),
    "vit": (ktx.ViT, VIT_ARGUMENTS),
    "gpt_template": (ktx.GPT, tools.gpt_arguments(hidden_dim=8, block=BLOCK)),
    "gpt_list": (ktx.GPT, tools.gpt_arguments(**tools.GPT_VARIANTS["list"]())),
    "vit_template": (ktx.ViT, tools.vit_arguments(block=layers.TransformerBlock(4, 5))),
}


def sample(model):
    return tools.tokens(2, 7) if isinstance(model, ktx.GPT) else tools.images(2)


@pytest.fixture(scope="module", params=sorted(CASES))
def model(request):
    model_class, arguments = CASES[request.param]
    return tools.randomize(model_class(**arguments))


@pytest.fixture(scope="module")
def output(model):
    return tools.forward(model)(sample(model))


def test_the_configuration_is_the_constructors_arguments(model):
    config = model.get_config()
    assert set(config) == {*model._constructor_arguments(), "name", "dtype", "trainable"}
    json.dumps(config)  # a `.keras` file holds it as JSON
    assert type(model).from_config(config).get_config() == config


@pytest.mark.parametrize("case", ["gpt", "vit"])
def test_every_argument_is_tested_with_another_value_than_its_default(case):
    model_class, arguments = CASES[case]
    assert set(arguments) == {*model_class._constructor_arguments(), "name", "dtype", "trainable"}
    config = model_class(**arguments).get_config()
    for name, parameter in inspect.signature(model_class.__init__).parameters.items():
        if name in config and name != "block":
            assert config[name] != parameter.default, name


def test_a_saved_model_gives_the_same_outputs(model, output, tmp_path):
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded) is type(model)
    assert [w.path for w in loaded.weights] == [w.path for w in model.weights]
    np.testing.assert_array_equal(tools.forward(loaded)(sample(model)), output)


@pytest.mark.parametrize("block", [None, tools.moe_block()], ids=["numbers", "template"])
def test_a_deep_model_loads_with_blocks_of_its_own(block, tmp_path):
    # Keras shares what a configuration holds three times, while it loads.
    model = ktx.GPT(**tools.gpt_arguments(num_layers=5, block=block))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert len({id(block) for block in loaded.blocks}) == 5
    for one, same in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(one, same)


def test_weights_load_before_any_call(model, tmp_path):
    model.save_weights(tmp_path / "model.weights.h5")
    other = type(model).from_config(model.get_config())
    assert other.built and other.count_params() == model.count_params()
    other.load_weights(tmp_path / "model.weights.h5")
    for one, same in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(one, same)


def test_a_new_model_has_a_summary():
    lines = []
    tools.make_vit().summary(print_fn=lines.append)
    assert "block_1" in "".join(lines) and "Total params" in "".join(lines)


def test_the_template_is_never_built_and_its_clones_share_nothing():
    gpt = ktx.GPT(**tools.gpt_arguments(hidden_dim=8, block=BLOCK))
    assert not BLOCK.built and not BLOCK.attention.built
    first, second = gpt.blocks
    assert not {id(w) for w in first.weights} & {id(w) for w in second.weights}
    kernel = first.attention.query_key_value_dense.kernel, second.feed_forward.inner_dense.kernel
    for one, other in zip(first.weights, second.weights, strict=True):
        assert one.shape == other.shape
    assert np.abs(ops.convert_to_numpy(kernel[0].value)).max() > 0
    assert not np.array_equal(
        ops.convert_to_numpy(kernel[0].value),
        ops.convert_to_numpy(second.attention.query_key_value_dense.kernel.value),
    )


def test_training_goes_on_after_loading(tmp_path):
    x, y = tools.tokens(6, 7), tools.tokens(6, 7, seed=6)

    def fit(model):
        model.fit(x, y, batch_size=3, epochs=2, shuffle=False, verbose=0)
        return model

    def compiled():
        gpt = tools.make_gpt()
        top = keras.metrics.SparseTopKCategoricalAccuracy(k=3, name="top")
        gpt.compile(keras.optimizers.Adam(0.01), weighted_metrics=[top])
        return gpt

    straight = fit(compiled())
    straight.save(tmp_path / "half.keras")
    fit(straight)
    loaded = keras.models.load_model(tmp_path / "half.keras")
    assert int(loaded.optimizer.iterations) == 4
    tools.assert_close(fit(loaded).get_weights(), straight.get_weights())
    assert set(loaded.evaluate(x, y, verbose=0, return_dict=True)) == {"loss", "accuracy", "top"}


LOADER = """
import sys
import keras_tx
import keras
model = keras.models.load_model(sys.argv[1])
sys.stdout.buffer.write("\\x00".join(model.generate(["The fox", ""], max_new_tokens=9)).encode())
"""


def test_a_fresh_process_generates_the_same_text(tmp_path):
    tokenizer = ktx.data.train_tokenizer(["The quick brown fox jumps over the lazy dog. "] * 9, 280)
    gpt = tools.make_gpt(vocabulary_size=None, max_sequence_length=31, tokenizer=tokenizer)
    assert gpt.vocabulary_size == tokenizer.vocabulary_size()
    assert (gpt.pad_token_id, gpt.start_token_id, gpt.end_token_id) == (0, 1, 2)
    gpt.save(tmp_path / "gpt.keras")
    expected = gpt.generate(["The fox", ""], max_new_tokens=9)
    assert any(expected)
    done = subprocess.run(
        [sys.executable, "-c", LOADER, tmp_path / "gpt.keras"],
        capture_output=True,
        env={
            **os.environ,
            "KERAS_BACKEND": keras.backend.backend(),
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        },
        cwd=os.getcwd(),
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().split("\x00") == expected
