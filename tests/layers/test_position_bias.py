"""ALiBi and T5's relative bias against transformers.

They take integers and are built with the shape of the scores, so the checks that every layer goes
through are made here, and inside an attention layer.
"""

import functools
import json
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from keras import ops

from keras_tx.layers import AlibiBias, RelativePositionBias
from keras_tx.ops.position_bias import alibi_slopes, relative_buckets

N, T, S = 3, 5, 11
DISTANCE = np.arange(T)[:, None] - np.arange(S)[None, :]
MAKE = {
    "alibi": AlibiBias,
    "relative": functools.partial(
        RelativePositionBias,
        14,
        max_distance=37,
        bidirectional=False,
        embeddings_initializer="he_normal",
    ),
}
every_bias = pytest.mark.parametrize("name", MAKE)


def built(name, **options):
    bias = MAKE[name](**options)
    bias.build((None, N, None, None))
    return bias


def table_of(bias):
    return ops.convert_to_numpy(bias.embeddings)


@pytest.mark.parametrize("bidirectional", [True, False], ids=["both_sides", "one_side"])
@pytest.mark.parametrize(
    "num_buckets, max_distance",
    [(32, 128), (16, 64), (8, 20), (64, 512), (14, 37), (4, 5), (32, 20)],
)
def test_buckets_are_those_of_t5(num_buckets, max_distance, bidirectional):
    import torch
    from transformers.models.t5.modeling_t5 import T5Attention

    distance = np.arange(-300, 301)
    expected = T5Attention._relative_position_bucket(
        torch.tensor(-distance), bidirectional, num_buckets, max_distance
    )
    got = relative_buckets(distance, num_buckets, max_distance, bidirectional)
    assert keras.backend.standardize_dtype(got.dtype) == "int32"
    np.testing.assert_array_equal(ops.convert_to_numpy(got), expected.numpy())


@pytest.mark.parametrize("is_decoder", [False, True], ids=["encoder", "decoder"])
def test_relative_bias_is_that_of_t5(is_decoder):
    import torch
    from transformers.models.t5.modeling_t5 import T5Attention

    bias = RelativePositionBias(14, max_distance=37, bidirectional=not is_decoder)
    bias.build((None, N, None, None))
    table = np.random.default_rng(0).standard_normal((14, N)).astype("float32")
    bias.embeddings.assign(table)
    theirs = SimpleNamespace(
        relative_attention_bias=torch.nn.Embedding.from_pretrained(torch.tensor(table)),
        relative_attention_num_buckets=14,
        relative_attention_max_distance=37,
        is_decoder=is_decoder,
        _relative_position_bucket=T5Attention._relative_position_bucket,
    )
    expected = T5Attention.compute_bias(theirs, 53, 59)[0].numpy()
    distance = np.arange(53)[:, None] - np.arange(59)[None, :]
    np.testing.assert_array_equal(ops.convert_to_numpy(bias(distance)), expected)


@pytest.mark.parametrize("num_heads", [1, 2, 3, 5, 8, 11, 12, 16, 23, 112])
def test_slopes_are_those_of_bloom(num_heads):
    from transformers.models.bloom.modeling_bloom import _get_alibi_slopes

    expected = _get_alibi_slopes(num_heads, "cpu").numpy()
    np.testing.assert_allclose(alibi_slopes(num_heads), expected, rtol=1e-6)


def test_slopes_are_those_of_the_paper():
    np.testing.assert_array_equal(alibi_slopes(8), 2.0 ** -np.arange(1, 9))


def test_causal_attention_with_alibi_is_that_of_bloom():
    import torch
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    scores = np.random.default_rng(0).standard_normal((N, S, S))
    hidden = np.triu(np.full((S, S), -np.inf), 1)
    distance = np.arange(S)[:, None] - np.arange(S)[None, :]
    theirs = build_alibi_tensor(torch.ones(1, S), N, torch.float32).numpy()  # (N, 1, S)
    ours = ops.convert_to_numpy(built("alibi")(distance))
    weights = []
    for bias in (ours, theirs):
        exponentials = np.exp(scores + bias + hidden)
        weights.append(exponentials / exponentials.sum(-1, keepdims=True))
    np.testing.assert_allclose(*weights, atol=1e-6)


def test_alibi_counts_the_distance_on_both_sides():
    bias = ops.convert_to_numpy(built("alibi")(DISTANCE))
    np.testing.assert_allclose(bias, -alibi_slopes(N)[:, None, None] * np.abs(DISTANCE), rtol=1e-6)


@every_bias
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "mixed_float16", "bfloat16"])
def test_it_is_float32_of_the_heads_and_any_shape(name, dtype):
    bias = built(name, dtype=dtype)
    expected = built(name)
    for old, new in zip(bias.weights, expected.weights, strict=True):
        new.assign(ops.cast(old, "float32"))
    line = np.arange(-S, T)
    for distance in (DISTANCE, line, DISTANCE[None, :, None]):
        got = bias(distance)
        assert keras.backend.standardize_dtype(got.dtype) == "float32"
        assert tuple(got.shape) == (N, *distance.shape)
        np.testing.assert_array_equal(*map(ops.convert_to_numpy, (got, expected(distance))))
    # The tiled path takes the bias of every distance once.
    whole, once = (ops.convert_to_numpy(bias(d)) for d in (DISTANCE, line))
    np.testing.assert_array_equal(once[:, DISTANCE + S], whole)

    symbolic = bias(keras.KerasTensor((None, 7), "int32"))
    assert symbolic.shape == (N, None, 7) and symbolic.dtype == "float32"


@every_bias
def test_configuration(name):
    bias = built(name)
    config = json.loads(json.dumps(bias.get_config()))
    copy = type(bias).from_config(config)
    assert copy.get_config() == config
    copy.build((None, N, None, None))
    assert [w.path.split("/")[-1] for w in copy.weights] == ["embeddings"] * len(copy.weights)
    copy.set_weights(bias.get_weights())
    np.testing.assert_array_equal(*(ops.convert_to_numpy(b(DISTANCE)) for b in (copy, bias)))


def test_the_initializer_is_used_and_stays_its_owners():
    initializer = keras.initializers.RandomNormal(stddev=3.0, seed=None)
    tables = []
    for _ in range(2):
        bias = RelativePositionBias(embeddings_initializer=initializer)
        bias.build((None, 64, None, None))
        tables.append(table_of(bias))
    assert tables[0].shape == (32, 64) and abs(tables[0].std() - 3.0) < 0.3
    assert np.abs(tables[0] - tables[1]).max() > 1


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="Others have no unknown dimension in a trace"
)
@pytest.mark.parametrize("compiled", [False, True], ids=["graph", "jit"])
@every_bias
def test_unknown_lengths(name, compiled):
    import tensorflow as tf

    bias = built(name)

    @tf.function(input_signature=[tf.TensorSpec((None, None), tf.int32)], jit_compile=compiled)
    def run(distance):
        return bias(distance)

    np.testing.assert_allclose(run(DISTANCE).numpy(), bias(DISTANCE).numpy(), rtol=1e-6)
