"""Law 10: what was expected, what was received, how to mend it; before any compute."""

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx import layers
from keras_tx.layers.bahdanau_attention import BahdanauAttention
from keras_tx.layers.luong_attention import LuongAttention
from tests.contract.cases import CASES

SELF, CROSS = layers.MultiHeadSelfAttention, layers.MultiHeadCrossAttention
BLOCK, MOE = layers.TransformerBlock, layers.MoEFFN

CONSTRUCTORS = [
    (lambda: layers.FeedForward(0), "`intermediate_dim` must be a positive integer.*Received: 0"),
    (lambda: layers.FeedForward(2.5), "`intermediate_dim` must be a positive.*Received: 2.5"),
    (lambda: layers.LearnedEncoding(0), "`max_sequence_length` must be a positive.*Received: 0"),
    (lambda: layers.SinusoidalEncoding("sum"), r"`mode` must be one of .*add.*Received: 'sum'"),
    (lambda: layers.SinusoidalEncoding(encoding_dim=4), "`encoding_dim` is for mode=.*Received: 4"),
    (
        lambda: layers.SinusoidalEncoding("concat", encoding_dim=0),
        "`encoding_dim` must be positive. Received: 0",
    ),
    (lambda: layers.AxialRotaryEncoding((3, 0)), r"`grid` must be a pair.*Received: \(3, 0\)"),
    (lambda: layers.AxialRotaryEncoding((3, 5), 0.0), "`max_wavelength` must be positive.*: 0.0"),
    (
        lambda: layers.AxialRotaryEncoding((3, 5), num_prefix_tokens=-1),
        "`num_prefix_tokens` must be an integer, at least 0. Received: -1",
    ),
    (lambda: layers.RotaryEncoding(0.0), "`max_wavelength` must be positive. Received: 0.0"),
    (lambda: layers.RotaryEncoding(scaling="yarn"), "an object such as Linear.*Received: 'yarn'"),
    (lambda: layers.RotaryEncoding(rotary_dim=5), "`rotary_dim` must be.*even.*Received: 5"),
    (lambda: layers.LinearScaling(0.0), "`factor` must be a positive number. Received: 0.0"),
    (lambda: layers.DynamicScaling(2.0, 0.5), "`original_length` must be an integer.*: 0.5"),
    (lambda: layers.YarnScaling(2.0, 64, beta_fast=1, beta_slow=2), "below `beta_fast`.*slow=2"),
    (
        lambda: layers.Llama3Scaling(2.0, 64, low_frequency_factor=4.0),
        "below `high_frequency_factor`.*low_frequency_factor=4.0",
    ),
    (lambda: layers.LongRopeScaling(2.0, 64, [1.0], [1.0, 2.0]), "equally many.*: 1 and 2"),
    (lambda: layers.RelativePositionBias(7), "even integer, at least 4.*7, bidirectional=True"),
    (
        lambda: layers.RelativePositionBias(1, bidirectional=False),
        "integer, at least 2. Received: 1, bidirectional=False",
    ),
    (lambda: layers.RelativePositionBias(8, 2), "`max_distance` must be.*above 2.*Received: 2"),
    (lambda: MOE(3, top_k=4), "`top_k` must be from 1 to `num_experts`.*top_k=4, num_experts=3"),
    (lambda: MOE(3, top_k=0), "`top_k` must be from 1 to `num_experts`.*top_k=0"),
    (lambda: MOE(3, intermediate_dim=-1), "`intermediate_dim` must be a positive.*Received: -1"),
    (lambda: SELF(0), "`num_heads` must be a positive integer. Received: 0"),
    (lambda: SELF(2.0), "`num_heads` must be a positive integer. Received: 2.0"),
    (lambda: SELF(2, head_dim=0), "`head_dim` must be a positive integer. Received: 0"),
    (lambda: SELF(5, 2, 2), "multiple of `num_key_value_heads`.*num_heads=5.*=2"),
    (lambda: SELF(2, window=0), "`window` must be a positive integer or None. Received: 0"),
    (
        lambda: SELF(2, window=3, num_global_tokens=-1),
        "`num_global_tokens` must be an integer, at least 0. Received: -1",
    ),
    (lambda: SELF(2, num_global_tokens=1), "beyond a `window`: give one.*window=None"),
    (lambda: SELF(2, scale=0.0), "`scale` must be positive or None. Received: 0.0"),
    (lambda: SELF(2, soft_cap="high"), "`soft_cap` must be positive or None. Received: 'high'"),
    (lambda: CROSS(2, dropout=1.0), "`dropout` must be at least 0 and below 1. Received: 1.0"),
    (lambda: SELF(2, dropout=None), "`dropout` must be at least 0 and below 1. Received: None"),
    (lambda: SELF(2, implementation="flash"), "`implementation` must be one of.*'flash'"),
    (lambda: CROSS(-1), "`num_heads` must be a positive integer. Received: -1"),
    (lambda: CROSS(4, 2, 3), "multiple of `num_key_value_heads`.*num_heads=4.*=3"),
    (lambda: BLOCK(), "Give `num_heads`, or pass every attention in. Received: num_heads=None"),
    (lambda: BLOCK(attention=SELF(2), cross_attention=True), "Give `num_heads`, or pass every"),
    (lambda: BLOCK(2, normalization="batch"), "`normalization` must be one of.*'batch'"),
    (lambda: BLOCK(2, normalization_order="mid"), "`normalization_order` must be one of.*'mid'"),
    (lambda: BLOCK(attention=SELF(2), causal=True), "give them to the attention passed in.*True"),
    (lambda: BLOCK(2, feed_forward=MOE(3), gated=True), "give them to the one passed in.*True"),
    (lambda: BLOCK(2, attention=SELF(2)), "give them to the attention passed in.*: num_heads=2"),
    (lambda: BLOCK(attention=SELF(2), head_dim=3), "to the attention passed in.*: head_dim=3"),
    (
        lambda: BLOCK(attention=SELF(2), feed_forward=MOE(3), use_bias=False),
        "`use_bias` and `kernel_initializer` are for parts made here.*: use_bias=False",
    ),
    (
        lambda: BLOCK(2, normalization=keras.layers.RMSNormalization(), layer_norm_epsilon=1e-3),
        "give it to the `normalization` passed in.*: layer_norm_epsilon=0.001",
    ),
    (
        lambda: BLOCK(2, cross_attention=True, normalization_order="parallel"),
        'no place for cross-attention.*use normalization_order="pre", "post" or "sandwich"',
    ),
    (lambda: BLOCK(2, stochastic_depth=1.0), "`stochastic_depth` must be from 0 to below 1.*: 1.0"),
    (lambda: BLOCK(2, layer_scale="small"), "`layer_scale` must be a number or None.*: 'small'"),
    (lambda: layers.AttentionPooling(0), "`num_heads` must be a positive integer. Received: 0"),
    (lambda: layers.AttentionPooling(2, 0), "`intermediate_dim` must be a positive.*Received: 0"),
    (lambda: layers.PatchEmbedding(0, 5), "`patch_size` must be a positive.*patch_size=0"),
    (lambda: layers.PatchEmbedding((2, 3, 4), 5), r"or a pair.*patch_size=\(2, 3, 4\)"),
    (lambda: layers.PatchEmbedding(2, 0), "`hidden_dim` positive.*hidden_dim=0"),
    (lambda: BahdanauAttention(0), "`units` must be a positive integer. Received: 0"),
    (lambda: LuongAttention("cosine"), "`score` must be one of.*'cosine'"),
    (lambda: LuongAttention(units=0), "`units` must be a positive integer or None. Received: 0"),
]


def x(*shape):
    return np.ones(shape, "float32")


def real(*shape):
    return np.ones(shape, bool)


def built(layer, *shapes):
    layer.build(*shapes)
    return layer


def cache(layer):
    return layer.empty_cache(2, 5, 6)


CALLS = [
    (lambda: layers.LearnedEncoding(3)(x(2, 5, 7)), "at most max_sequence_length=3.*length 5"),
    (
        lambda: layers.LearnedEncoding(3)(x(2, 2, 7), positions=np.array([1, 3])),
        r"`positions` must be from 0 to 2 \(max_sequence_length=3\). Received: from 1 to 3",
    ),
    (
        lambda: layers.LearnedEncoding(3)(x(2, 2, 7), positions=keras.ops.array([-1, 1])),
        "`positions` must be from 0 to 2.*from -1 to 1",
    ),
    (
        lambda: layers.AxialRotaryEncoding((3, 5))(x(2, 3, 15, 6)),
        "known and divisible by 4. Received: .*6",
    ),
    (
        lambda: layers.AxialRotaryEncoding((3, 5))(x(2, 3, 14, 8)),
        r"x must have 15 places \(grid=\(3, 5\), num_prefix_tokens=0\).*Received: 14",
    ),
    (
        lambda: layers.AxialRotaryEncoding((3, 5))(x(1, 3, 2, 8), np.array([[3, 15]])),
        "`positions` must be from 0 to 14.*from 3 to 15",
    ),
    (lambda: layers.RotaryEncoding()(x(2, 3, 5, 7)), "known and even.*Received: .*7"),
    (
        lambda: layers.RotaryEncoding(rotary_dim=8)(x(2, 3, 5, 6)),
        "at most the head's features. Received: 8, and 6",
    ),
    (
        lambda: layers.RotaryEncoding(scaling=layers.LongRopeScaling(2.0, 9, [1.0], [1.0]))(
            x(2, 3, 5, 6)
        ),
        "must be 3 numbers.*the 6 features turned. Received: 1",
    ),
    (
        lambda: layers.AlibiBias()(np.arange(5)),
        r"built with the shape.*heads must be known. Received: \(5,\). Call",
    ),
    (lambda: SELF(3)(x(2, 5, 7)), "divisible by num_heads=3.*`head_dim`.*7"),
    (lambda: SELF(2)(x(5, 6)), r"`x` must be \(batch, length, features\).*\(5, 6\)"),
    (lambda: SELF(2)(x(2, 5, 6, 2)), r"`x` must be \(batch, length, features\).*6, 2\)"),
    (
        lambda: SELF(2)(x(2, 5, 6), padding_mask=x(2, 5, 1)),
        r"padding mask must be \(batch, length\).*\(2, 5, 1\)",
    ),
    (
        lambda: SELF(2)(x(2, 5, 6), attention_mask=x(5, 5)),
        r"`attention_mask` must be \(batch, queries, keys\).*\(5, 5\)",
    ),
    (lambda: SELF(2)(x(2, 5, 6), segment_ids=x(5)), r"`segment_ids` must be.*Received: .*\(5,\)"),
    *[
        (
            lambda path=path: SELF(2, implementation=path)(x(2, 5, 6), padding_mask=real(2, 1)),
            r"padding mask must be.*here \(2, 5\). Received: shape \(2, 1\)",
        )
        for path in ("dense", "tiled")
    ],
    (
        lambda: SELF(2)(x(2, 5, 6), padding_mask=x(2, 5)),
        "padding mask must be boolean.*Received: dtype float32. .*`mask > 0.5`",
    ),
    (
        lambda: SELF(2, implementation="tiled")(x(2, 5, 6), attention_mask=real(2, 5, 1)),
        r"`attention_mask` must be.*here \(2, 5, 5\). Received: shape \(2, 5, 1\)",
    ),
    (
        lambda: SELF(4, 3, 2, implementation="tiled")(x(2, 5, 6), attention_mask=real(2, 2, 5, 5)),
        r"`attention_mask` must be.*here \(2, 4, 5, 5\). Received: shape \(2, 2, 5, 5\)",
    ),
    (
        lambda: SELF(2)(x(2, 5, 6), attention_mask=x(2, 5, 5)),
        "`attention_mask` must be boolean.*Received: dtype float32. .*`mask == 0`",
    ),
    (
        lambda: SELF(2)(x(2, 5, 6), segment_ids=np.zeros((2, 4), "int32")),
        r"`segment_ids` must be.*here \(2, 5\). Received: shape \(2, 4\)",
    ),
    (
        lambda: SELF(2)(x(2, 5, 6), segment_ids=x(2, 5)),
        "`segment_ids` must be integers. Received: dtype float32. Cast",
    ),
    (
        lambda: SELF(2, causal=True)(
            x(2, 6, 6), cache=cache(SELF(2)), cache_index=np.zeros(2, "int32")
        ),
        r"cache must be \(2, 2, at least 6, 3\).*Received: \(2, 2, 5, 3\). Make it with",
    ),
    (
        lambda: SELF(2, causal=True)(x(2, 1, 6), cache=cache(SELF(2)), cache_index=np.int32(0)),
        r"one integer for each row, of shape \(2,\). Received: shape \(\)",
    ),
    (
        lambda: SELF(2, causal=True)(
            x(2, 1, 6),
            cache=cache(SELF(2)),
            cache_index=np.zeros(2, "int32"),
            attention_mask=real(2, 1, 1),
        ),
        r"`attention_mask` must be.*here \(2, 1, 5\). Received: shape \(2, 1, 1\)",
    ),
    (
        lambda: CROSS(2)(x(2, 5, 6), x(2, 3, 4), context_mask=real(2, 5)),
        r"padding mask must be.*here \(2, 3\). Received: shape \(2, 5\)",
    ),
    *[
        (
            lambda shape=shape: SELF(3, 2, position=layers.RotaryEncoding())(
                x(2, 5, 6), positions=np.zeros(shape, "int32")
            ),
            r"`positions` must be.*here \(5,\) or \(2, 5\). Received: shape \([43]",
        )
        for shape in ((4,), (3, 5))
    ],
    (
        lambda: CROSS(2)(x(2, 5, 6), x(1, 3, 4)),
        "of one batch, row by row. Received: 2 rows of `x`, 1 of `context`",
    ),
    (lambda: built(SELF(2), (2, 5, 6))(x(5, 6)), r"`x` must be \(batch, length, .*\(5, 6\)"),
    (
        lambda: BahdanauAttention(5)(x(2, 3, 4), x(2, 5, 4), mask=real(2, 3)),
        r"padding mask must be.*here \(2, 5\). Received: shape \(2, 3\)",
    ),
    *[
        (
            lambda kw=kw: SELF(2, implementation="fused", **kw)(x(2, 5, 6), training=True),
            'implementation="fused" cannot be used here, as .*: use "auto"',
        )
        for kw in ({"soft_cap": 2.0}, {"sinks": True}, {"dropout": 0.5})
    ],
    (
        lambda: SELF(2)(x(2, 1, 6), cache=cache(SELF(2)), cache_index=np.zeros(2, "int32")),
        "A cache needs `causal=True`.*causal=False",
    ),
    (
        lambda: SELF(2, causal=True)(x(2, 1, 6), cache=cache(SELF(2))),
        "A cache needs `cache_index`.*Received: None",
    ),
    (
        lambda: SELF(2, causal=True)(
            x(2, 1, 6),
            cache=cache(SELF(2)),
            cache_index=np.zeros(2, "int32"),
            padding_mask=np.ones((2, 1), bool),
        ),
        "With a cache, `padding_mask`.*use `attention_mask`",
    ),
    (lambda: CROSS(3)(x(2, 5, 7), x(2, 3, 4)), "divisible by num_heads=3.*`head_dim`.*7"),
    (lambda: CROSS(2)(x(2, 5, 6), x(3, 4)), r"`context` must be \(batch, length, .*\(3, 4\)"),
    (lambda: BLOCK(2, cross_attention=True)(x(2, 5, 6)), "call it with `context=`"),
    (lambda: BLOCK(2)(x(2, 5, 6), context=x(2, 3, 4)), "no cross-attention.*cross_attention=True"),
    (
        lambda: layers.PatchEmbedding(2, 5)(x(2, 4, 5, 3)),
        "multiples of patch_size=2. Received: 4 x 5. Resize or pad",
    ),
    (
        lambda: layers.PatchEmbedding(2, 5)(x(4, 4, 3)),
        r"\(batch, height, width, channels\).*\(4, 4",
    ),
    (lambda: BahdanauAttention(5)(x(2, 3, 4), x(2, 4)), r"`values` must have 3 dimensions.*\(2, 4"),
    (lambda: LuongAttention("dot")(x(2, 3, 4), x(2, 3, 5)), 'score="general".*Received: 4 and 5'),
]


@pytest.mark.parametrize("mistake, message", CONSTRUCTORS, ids=[m[:40] for _, m in CONSTRUCTORS])
def test_a_wrong_argument_is_refused_at_construction(mistake, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        mistake()


@pytest.mark.parametrize("mistake, message", CALLS, ids=[m[:40] for _, m in CALLS])
def test_a_wrong_input_is_refused_before_it_is_used(mistake, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        mistake()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_unknown_features_are_refused(case):
    first = next(iter(case.shapes))
    spec = {name: keras.Input(shape[1:]) for name, shape in case.shapes.items()}
    spec[first] = keras.Input((*case.shapes[first][1:-1], None))
    rest = {name: spec[name] for name in case.shapes if name != first}
    with pytest.raises(ValueError, match="known"):
        case.make()(spec[first], **rest)


def test_every_public_layer_refuses_something():
    text = [mistake.__code__ for mistake, _ in [*CONSTRUCTORS, *CALLS]]
    known = {value.__name__: name for name, value in globals().items() if isinstance(value, type)}
    named = {name for code in text for name in code.co_names}
    for cls in keras_tx.layers.__all__:
        assert cls in named or known.get(cls) in named, cls
