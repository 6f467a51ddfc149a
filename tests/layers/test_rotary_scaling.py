"""Scaled and partial rotary encodings against transformers' rotary embeddings."""

import json

import keras
import numpy as np
import pytest
from keras import ops

import keras_tx
from keras_tx import layers
from keras_tx.ops.rotary import rotary_frequencies
from tests.contract.running import assert_close, call, tensors

B, N, T, H, BASE, ORIGINAL = 2, 3, 5, 22, 1000.0, 97
PAIRS = H // 2
SHORT = (1.0 + 0.1 * np.arange(PAIRS)).tolist()
LONG = (1.5 + 0.7 * np.arange(PAIRS)).tolist()

# (ours, transformers' parameters, lengths to try; None: a length of training)
YARN = {"rope_type": "yarn", "factor": 7.0}
TABLE = {
    "linear": (layers.LinearScaling(3.0), {"rope_type": "linear", "factor": 3.0}, [None]),
    "dynamic": (
        layers.DynamicScaling(3.0, ORIGINAL),
        {"rope_type": "dynamic", "factor": 3.0},
        [None, 1, ORIGINAL, ORIGINAL + 1, 1009, 131071],
    ),
    "yarn": (layers.YarnScaling(7.0, ORIGINAL), YARN, [None]),
    "yarn_untruncated": (
        layers.YarnScaling(7.0, ORIGINAL, beta_fast=5.0, beta_slow=2.0, truncate=False),
        {**YARN, "beta_fast": 5.0, "beta_slow": 2.0, "truncate": False},
        [None],
    ),
    "yarn_mscale": (
        layers.YarnScaling(7.0, ORIGINAL, mscale=0.7, mscale_all_dim=1.3),
        {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3},
        [None],
    ),
    "yarn_one_pair": (  # no width between the bounds
        layers.YarnScaling(7.0, ORIGINAL, beta_fast=1.0001, beta_slow=1.0, attention_factor=1.7),
        {**YARN, "beta_fast": 1.0001, "beta_slow": 1.0, "attention_factor": 1.7},
        [None],
    ),
    "longrope": (
        layers.LongRopeScaling(8.0, ORIGINAL, SHORT, LONG),
        {"rope_type": "longrope", "factor": 8.0, "short_factor": SHORT, "long_factor": LONG},
        [None, 1, ORIGINAL, ORIGINAL + 1, 1009],
    ),
    "longrope_attention": (
        layers.LongRopeScaling(8.0, ORIGINAL, SHORT, LONG, attention_factor=0.9),
        {
            **{"rope_type": "longrope", "factor": 8.0, "attention_factor": 0.9},
            **{"short_factor": SHORT, "long_factor": LONG},
        },
        [None, 1009],
    ),
    "llama3": (
        layers.Llama3Scaling(8.0, ORIGINAL, low_frequency_factor=2.0, high_frequency_factor=5.0),
        {
            **{"rope_type": "llama3", "factor": 8.0},
            **{"low_freq_factor": 2.0, "high_freq_factor": 5.0},
        },
        [None],
    ),
}
every_scaling = pytest.mark.parametrize("name", TABLE)
scaled_by_length = pytest.mark.parametrize("name", ["dynamic", "longrope"])


def configuration(parameters, head_dim=H, base=BASE, original=ORIGINAL, fraction=1.0):
    import transformers

    parameters = {
        **parameters,
        "rope_theta": base,
        "original_max_position_embeddings": original,
        "partial_rotary_factor": fraction,
    }
    if parameters["rope_type"] == "dynamic":
        del parameters["original_max_position_embeddings"]
    return transformers.LlamaConfig(
        hidden_size=N * head_dim,
        num_attention_heads=N,
        head_dim=head_dim,
        max_position_embeddings=original,
        rope_parameters=parameters,
    )


def theirs(parameters, length=None, **options):
    """transformers' frequencies and attention factor."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = configuration(parameters, **options)
    frequencies, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](
        config, "cpu", seq_len=length
    )
    return frequencies.numpy(), factor


def assert_same_frequencies(got, expected):
    assert got.dtype == "float64"
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-12)


@every_scaling
def test_frequencies_are_those_of_transformers(name):
    scaling, parameters, lengths = TABLE[name]
    for length in lengths:
        frequencies, factor = theirs(parameters, length)
        assert_same_frequencies(scaling.frequencies(H, BASE, length), frequencies)
        assert abs(scaling.attention_factor - factor) < 1e-6
    assert np.abs(frequencies - rotary_frequencies(H, BASE)).max() > 1e-3  # something is scaled


@pytest.mark.parametrize(
    "scaling, parameters, dim, base, original",
    [
        (
            layers.Llama3Scaling(8.0, 8192),
            {
                **{"rope_type": "llama3", "factor": 8.0},
                **{"low_freq_factor": 1.0, "high_freq_factor": 4.0},
            },
            *(128, 5e5, 8192),
        ),
        (layers.YarnScaling(4.0, 32768), {"rope_type": "yarn", "factor": 4.0}, 128, 1e6, 32768),
        (
            layers.YarnScaling(32.0, 4096, truncate=False),
            {"rope_type": "yarn", "factor": 32.0, "truncate": False},
            *(64, 150000.0, 4096),
        ),
        # Not published: training so long that the bounds lie beyond the last pair.
        (
            layers.YarnScaling(4.0, 10**5, beta_fast=1000.0),
            {"rope_type": "yarn", "factor": 4.0, "beta_fast": 1000.0},
            *(22, 100.0, 10**5),
        ),
    ],
    ids=["llama_3.1", "qwen_2.5", "gpt_oss", "beyond"],
)
def test_frequencies_at_the_sizes_of_published_models(scaling, parameters, dim, base, original):
    frequencies, factor = theirs(parameters, head_dim=dim, base=base, original=original)
    assert_same_frequencies(scaling.frequencies(dim, base), frequencies)
    assert abs(scaling.attention_factor - factor) < 1e-6


@scaled_by_length
def test_lengths_in_a_tensor_are_lengths_as_numbers(name):
    scaling = TABLE[name][0]
    lengths = np.array([1, ORIGINAL, ORIGINAL + 1, 1009, 131071])
    got = scaling.frequencies(H, BASE, ops.convert_to_tensor(lengths))
    assert keras.backend.standardize_dtype(got.dtype) == "float32" and got.shape == (5, PAIRS)
    for row, length in zip(ops.convert_to_numpy(got), lengths.tolist(), strict=True):
        np.testing.assert_allclose(row, scaling.frequencies(H, BASE, length), rtol=1e-6)


X = np.random.default_rng(5).standard_normal((B, N, T, H)).astype("float32")
POSITIONS = np.array([[3, 0, 1, 12, 2], [90, 91, 4, 1008, 1]])


def turned_by_transformers(parameters, x, positions, length=None, fraction=1.0):
    """Of one row: (N, T, H)."""
    import torch
    from transformers.models.gpt_neox.modeling_gpt_neox import apply_rotary_pos_emb

    frequencies, factor = theirs(parameters, length, fraction=fraction)
    angles = torch.tensor(positions[:, None] * frequencies.astype("float64"))
    angles = torch.cat([angles, angles], -1)[None]
    x = torch.tensor(x.astype("float64"))[None]
    dim = angles.shape[-1]  # GPT-NeoX turns a part and leaves the rest
    first, _ = apply_rotary_pos_emb(
        x[..., :dim], x[..., :dim], angles.cos() * factor, angles.sin() * factor
    )
    return torch.cat([first, x[..., dim:]], -1)[0].numpy()


@every_scaling
def test_rotation_is_that_of_transformers(name):
    scaling, parameters, lengths = TABLE[name]
    layer = layers.RotaryEncoding(BASE, scaling=scaling)
    arguments = tensors({"positions": POSITIONS})
    for length in lengths[-2:]:
        got = call(
            layer, {"x": X}, **arguments, **({} if length is None else {"lengths": [length]})
        )
        for row in range(B):
            expected = turned_by_transformers(parameters, X[row], POSITIONS[row], length)
            assert_close(got[row], expected.astype("float32"), 1e-4)  # an angle of 1008 in float32


@scaled_by_length
def test_each_row_has_a_length_of_its_own(name):
    layer = layers.RotaryEncoding(BASE, scaling=TABLE[name][0])
    lengths = np.array([11, 1009])
    for positions in (POSITIONS, POSITIONS[0]):
        given = tensors({"positions": positions})
        got = call(layer, {"x": X}, **given, **tensors({"lengths": lengths}))
        for row in range(B):
            own = tensors({"positions": positions[row] if positions.ndim == 2 else positions})
            alone = layer(X[row : row + 1], lengths=int(lengths[row]), **own)
            # Lengths in a tensor make float32 frequencies, which a position of 1008 multiplies.
            assert_close(got[row], ops.convert_to_numpy(alone)[0], 1e-4)
    short = call(layer, {"x": X}, **tensors({"positions": POSITIONS}))
    assert_close(got[0], call(layer, {"x": X}, **given)[0])
    assert np.abs(short[1] - call(layer, {"x": X}, lengths=[1009, 1009])[1]).max() > 1e-2


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "pairs"])
def test_only_the_first_features_are_turned(interleaved):
    part = layers.RotaryEncoding(BASE, rotary_dim=6, interleaved=interleaved)
    whole = layers.RotaryEncoding(BASE, interleaved=interleaved)
    got = call(part, {"x": X})
    np.testing.assert_array_equal(got[..., 6:], X[..., 6:])
    assert_close(got[..., :6], call(whole, {"x": X[..., :6]}))


def test_partial_rotation_is_that_of_transformers():
    fraction = 0.55  # of 22: 12
    layer = layers.RotaryEncoding(BASE, scaling=TABLE["yarn"][0], rotary_dim=12)
    got = call(layer, {"x": X}, **tensors({"positions": POSITIONS}))
    for row in range(B):
        expected = turned_by_transformers(YARN, X[row], POSITIONS[row], fraction=fraction)
        assert_close(got[row], expected.astype("float32"), 1e-4)
    np.testing.assert_array_equal(got[..., 12:], X[..., 12:])  # the attention factor is not theirs


@every_scaling
def test_configuration(name):
    layer = layers.RotaryEncoding(BASE, scaling=TABLE[name][0], rotary_dim=None)
    config = json.loads(json.dumps(layer.get_config()))
    copy = layers.RotaryEncoding.from_config(config)
    assert copy.get_config() == config and type(copy.scaling) is type(layer.scaling)
    np.testing.assert_array_equal(
        copy.scaling.frequencies(H, BASE, 1009), layer.scaling.frequencies(H, BASE, 1009)
    )
    assert copy.scaling.attention_factor == layer.scaling.attention_factor


def test_the_configuration_keeps_what_was_given():
    assert layers.YarnScaling(7.0, ORIGINAL).get_config()["attention_factor"] is None
    given = layers.LongRopeScaling(8.0, ORIGINAL, SHORT, LONG, attention_factor=0.9)
    assert given.get_config()["attention_factor"] == 0.9


def test_a_saved_model_keeps_the_scaling(tmp_path):
    position = layers.RotaryEncoding(BASE, scaling=TABLE["longrope"][0], name="position")
    block = layers.TransformerBlock(2, head_dim=H, causal=True, position=position)
    gpt = keras_tx.GPT(7, 2, 4, block=block, max_sequence_length=8)
    gpt.save(tmp_path / "gpt.keras")
    loaded = keras.models.load_model(tmp_path / "gpt.keras")
    assert loaded.blocks[1].attention.position.scaling.long_factors == LONG
    tokens = np.array([[1, 2, 3, 4, 5]])
    assert_close(*(ops.convert_to_numpy(model(tokens)) for model in (loaded, gpt)))


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="Others have no unknown dimension in a trace"
)
@pytest.mark.parametrize("compiled", [False, True], ids=["graph", "jit"])
@scaled_by_length
def test_unknown_batch_and_length(name, compiled):
    import tensorflow as tf

    layer = layers.RotaryEncoding(BASE, scaling=TABLE[name][0])
    layer.build((None, N, None, H))
    unknown = tf.TensorSpec((None, N, None, H)), tf.TensorSpec((None,), tf.int64)

    @tf.function(input_signature=unknown, jit_compile=compiled)
    def turn(x, lengths):
        return layer(x, lengths=lengths)

    lengths = np.array([11, 1009])
    assert_close(turn(X, lengths).numpy(), call(layer, {"x": X}, lengths=lengths))
