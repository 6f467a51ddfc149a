"""A GPT and a ViT written from public layers alone fit, save, and equal the model classes."""

import keras
import numpy as np
from keras import ops

from keras_tx import layers
from tests.models import tools


def functional_gpt(sizes):
    token_ids = keras.Input((None,), dtype="int32", name="token_ids")
    embedding = keras.layers.ReversibleEmbedding(
        sizes["vocabulary_size"], sizes["hidden_dim"], name="token_embedding"
    )
    x = embedding(token_ids)
    x = layers.LearnedEncoding(sizes["max_sequence_length"], name="position_encoding")(x)
    for index in range(sizes["num_layers"]):
        x = layers.TransformerBlock(
            sizes["num_heads"],
            sizes["intermediate_dim"],
            head_dim=sizes["head_dim"],
            causal=True,
            name=f"block_{index}",
        )(x)
    x = keras.layers.LayerNormalization(epsilon=1e-5, name="output_norm")(x)
    return keras.Model(token_ids, embedding(x, reverse=True))


@keras.saving.register_keras_serializable(package="keras_tx_tests")
class ClassToken(keras.layers.Layer):
    """Puts a learned vector before the patches."""

    def build(self, x_shape):
        self.class_token = self.add_weight(shape=(1, 1, x_shape[-1]), name="class_token")

    def call(self, x):
        token = ops.broadcast_to(self.class_token, (ops.shape(x)[0], 1, x.shape[-1]))
        return ops.concatenate([token, x], axis=1)


def functional_vit(sizes):
    images = keras.Input((*sizes["image_size"], sizes["num_channels"]), dtype="uint8")
    x = keras.layers.Rescaling(2 / 255, offset=-1)(images)
    x = layers.PatchEmbedding(sizes["patch_size"], sizes["hidden_dim"], name="patch_embedding")(x)
    x = ClassToken(name="class_token")(x)
    x = layers.LearnedEncoding(x.shape[1], name="position_encoding")(x)
    for index in range(sizes["num_layers"]):
        x = layers.TransformerBlock(
            sizes["num_heads"],
            sizes["intermediate_dim"],
            layer_norm_epsilon=1e-6,
            name=f"block_{index}",
        )(x)
    x = keras.layers.LayerNormalization(epsilon=1e-6, name="output_norm")(x)
    return keras.Model(images, keras.layers.Dense(sizes["num_classes"], name="head")(x[:, 0]))


def copy_weights(source, target):
    """By the path below the model's name."""
    values = {}
    for weight in source.weights:
        path = weight.path.removeprefix(f"{source.name}/")
        path = "class_token/class_token" if path == "class_token" else path
        values[path] = ops.convert_to_numpy(weight)
    assert len(values) == len(target.weights)
    for weight in target.weights:
        weight.assign(values[weight.path])


def check(functional, model, x, y, tmp_path):
    copy_weights(model, functional)
    tools.assert_close(functional.predict(x, verbose=0), model.predict(x, verbose=0))

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    functional.compile(keras.optimizers.SGD(0.1), loss=loss)
    model.compile(keras.optimizers.SGD(0.1))
    one, other = (m.fit(x, y, batch_size=2, shuffle=False, verbose=0) for m in (functional, model))
    tools.assert_close(one.history["loss"], other.history["loss"])
    functional.save(tmp_path / "functional.keras")
    loaded = keras.models.load_model(tmp_path / "functional.keras")
    tools.assert_close(loaded.predict(x, verbose=0), model.predict(x, verbose=0))


def test_gpt(tmp_path):
    x = tools.tokens(4, 7)
    check(functional_gpt(tools.GPT_SIZES), tools.make_gpt(), x, np.roll(x, -1, 1), tmp_path)


def test_vit(tmp_path):
    y = np.array([0, 1, 2, 4])
    check(functional_vit(tools.VIT_SIZES), tools.make_vit(), tools.images(4), y, tmp_path)


def test_models_are_parts_of_functional_models():
    gpt = tools.make_gpt()
    token_ids = keras.Input((7,), dtype="int32")
    logits, scores = gpt(token_ids, return_attention_scores=True)
    assert logits.shape == (None, 7, tools.VOCABULARY) and logits.dtype == "float32"
    assert {name: s.shape for name, s in scores.items()} == {
        f"block_{index}": (None, 3, 7, 7) for index in range(2)
    }
    both = keras.Model(token_ids, [logits, scores["block_1"]])
    x = tools.tokens(3, 7)
    actual, weights = both.predict(x, verbose=0)
    tools.assert_close(actual, gpt.predict(x, verbose=0))
    tools.assert_close(weights.sum(-1), np.ones((3, 3, 7)))
    half = tools.make_vit(dtype="mixed_bfloat16")
    assert half(keras.Input((*tools.VIT_SIZES["image_size"], 2))).dtype == "float32"
