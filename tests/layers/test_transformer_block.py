"""The block is its formula over its parts, whichever way the parts were given."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_tx.layers import (
    DynamicScaling,
    FeedForward,
    MoEFFN,
    MultiHeadCrossAttention,
    MultiHeadSelfAttention,
    RotaryEncoding,
    TransformerBlock,
)
from keras_tx.layers.normalization import make_normalization
from keras_tx.layers.parts import clone
from tests.contract.running import assert_close, call, call_eagerly, outputs, tensors

B, T, S, D, C = 2, 5, 7, 6, 13
X = np.random.default_rng(0).standard_normal((B, T, D)).astype("float32")
CONTEXT = np.random.default_rng(1).standard_normal((B, S, C)).astype("float32")
MASK = np.arange(T)[None] < [[T], [3]]
CONTEXT_MASK = np.arange(S)[None] < [[4], [S]]


FORMS = [
    ("pre", "layer"),
    ("pre", "rms"),
    ("post", "no_bias"),
    ("sandwich", "rms"),
    ("parallel", "layer"),
    ("parallel_two_norms", "rms"),
]
NORMALIZATIONS = {
    "layer": "layer",
    "rms": "rms",
    "no_bias": keras.layers.LayerNormalization(epsilon=0.03, center=False, name="mine"),
}


def randomize(block, shape=X.shape, *others):
    """Built, with weights among which no gain is 1 and no two are equal."""
    block.build(shape, *others)
    random = np.random.default_rng(5)
    for weight in block.trainable_weights:
        weight.assign(ops.convert_to_numpy(weight) + 0.3 * random.standard_normal(weight.shape))
    return block


def normal(x, layer, kind, epsilon=0.03):
    """By a gain and a bias that may be missing, in float64."""
    weights = [ops.convert_to_numpy(weight).astype("float64") for weight in layer.weights]
    assert len(weights) == (2 if kind == "layer" else 1)
    x = x.astype("float64")
    if kind != "rms":
        x = x - x.mean(-1, keepdims=True)
    y = x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * weights[0]
    return y + weights[1] if kind == "layer" else y


def formula(block, kind, parts, x=X):
    """The block's formula over its own parts, {name: function}."""

    def norm(name, x):
        return normal(x, getattr(block, name), kind)

    def branch(name, y):
        y = parts[name](y.astype("float32")).astype("float64")
        if block.normalization_order == "sandwich":
            y = norm(f"{name}_output_norm", y)
        if block.layer_scale is not None:
            y = y * ops.convert_to_numpy(getattr(block, f"{name}_layer_scale"))
        return y

    match block.normalization_order:
        case "parallel":
            shared = norm("shared_norm", x)
            return x + sum(branch(name, shared) for name in parts)
        case "parallel_two_norms":
            return x + sum(branch(name, norm(f"{name}_norm", x)) for name in parts)
    for name in parts:
        if block.normalization_order == "post":
            x = norm(f"{name}_norm", x + branch(name, x))
        else:
            x = x + branch(name, norm(f"{name}_norm", x))
    return x


@pytest.mark.parametrize("order, kind", FORMS)
def test_is_the_formula_of_its_parts(order, kind):
    has_cross = not order.startswith("parallel")
    normalization = NORMALIZATIONS[kind]
    block = TransformerBlock(
        3,
        11,
        head_dim=2,
        cross_attention=has_cross or None,
        normalization=normalization,
        normalization_order=order,
        layer_scale=0.7 if kind == "rms" else None,
        **({"layer_norm_epsilon": 0.03} if isinstance(normalization, str) else {}),
    )
    randomize(block, X.shape, CONTEXT.shape)
    masks = tensors({"padding_mask": MASK, "context_mask": CONTEXT_MASK})
    inputs = {"x": X, "context": CONTEXT} if has_cross else {"x": X}
    got = call(block, inputs, **masks)

    def attend(y):
        return call(block.attention, {"x": y}, padding_mask=masks["padding_mask"])

    def attend_context(y):
        return call(
            block.cross_attention,
            {"x": y, "context": CONTEXT},
            context_mask=masks["context_mask"],
        )

    parts = {"attention": attend}
    if has_cross:
        parts["cross_attention"] = attend_context
    parts["feed_forward"] = lambda y: call(block.feed_forward, {"x": y})
    assert_close(got.astype("float64"), formula(block, kind, parts))


def test_a_normalization_passed_in_is_a_template():
    template = NORMALIZATIONS["no_bias"]
    block = TransformerBlock(3, 11, head_dim=2, normalization=template)
    block.build(X.shape)
    assert not template.built
    assert block.attention_norm is not block.feed_forward_norm
    assert block.attention_norm.name == "attention_norm"
    copy = TransformerBlock.from_config(block.get_config())
    copy.build(X.shape)
    copy.set_weights(block.get_weights())
    assert_close(call(copy, {"x": X}), call(block, {"x": X}), 0.0)


class Owner(keras.layers.Layer):
    """Calls a layer where Keras casts the weights that it reads."""

    def __init__(self, part, **kwargs):
        super().__init__(**kwargs)
        self.part = part

    def call(self, x):
        return self.part(x)


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("kind", NORMALIZATIONS)
def test_normalizes_in_float32(kind, dtype):
    """Gains that half precision would round, and numbers whose squares float16 cannot hold."""
    layer = make_normalization(NORMALIZATIONS[kind], "norm", 0.03, dtype, D)
    gain = 1 + (2.0**-9 if dtype == "mixed_bfloat16" else 2.0**-12) * np.ones(D)
    layer.set_weights([gain, *layer.get_weights()[1:]])
    x = ops.cast(np.repeat(400 * X, 9, axis=0), layer.compute_dtype)
    got = Owner(layer, dtype=dtype)(x)
    assert keras.backend.standardize_dtype(got.dtype) == layer.compute_dtype
    expected = normal(ops.convert_to_numpy(ops.cast(x, "float32")), layer, kind)
    expected = ops.cast(expected.astype("float32"), layer.compute_dtype)  # rounded once
    same = ops.convert_to_numpy(got == expected)
    assert same.mean() > 0.99


def test_layer_scale_begins_at_its_number():
    block = TransformerBlock(3, 11, head_dim=2, layer_scale=0.0)
    assert_close(call(block, {"x": X}), X, 0.0)
    for name in ("attention", "feed_forward"):
        scale = getattr(block, f"{name}_layer_scale")
        assert scale.shape == (D,) and scale.path == f"{block.name}/{name}_layer_scale"


def test_stochastic_depth_drops_whole_branches_of_a_row():
    block = TransformerBlock(
        3,
        11,
        head_dim=2,
        stochastic_depth=0.4,
        layer_norm_epsilon=0.03,
        layer_scale=0.5,
    )
    randomize(block)
    x = np.repeat(X[:1], 64, axis=0)
    parts = {
        "attention": lambda y: call(block.attention, {"x": y}),
        "feed_forward": lambda y: call(block.feed_forward, {"x": y}),
    }
    exact = {(): X[:1]}
    for kept in (("attention",), ("feed_forward",), ("attention", "feed_forward")):
        grown = {name: lambda y, name=name: parts[name](y) / 0.6 for name in kept}
        exact[kept] = formula(block, "layer", grown, X[:1])
    got = call(block, {"x": x}, training=True)
    counts = dict.fromkeys(exact, 0)
    for row in got:
        near = {kept: np.abs(row - value[0]).max() for kept, value in exact.items()}
        best = min(near, key=near.get)
        assert near[best] < 1e-4
        counts[best] += 1
    assert all(counts.values()) and counts[("attention", "feed_forward")] > counts[()]
    assert_close(call(block, {"x": x})[:1], formula(block, "layer", parts, X[:1]).astype("float32"))


def test_numbers_and_parts_make_the_same_block():
    numbers = TransformerBlock(3, 11, head_dim=2, causal=True, window=2, gated=True)
    parts = TransformerBlock(
        attention=MultiHeadSelfAttention(3, 2, causal=True, window=2),
        feed_forward=FeedForward(11, gated=True),
    )
    for block in (numbers, parts):
        block.build(X.shape)
    parts.set_weights(numbers.get_weights())
    assert_close(call(parts, {"x": X}), call(numbers, {"x": X}), 0.0)


def test_the_mask_of_the_source_is_used_in_cross_attention():
    block = TransformerBlock(3, 11, head_dim=2, cross_attention=True)
    masks = tensors({"padding_mask": MASK, "context_mask": CONTEXT_MASK})
    expected = call(block, {"x": X, "context": CONTEXT}, **masks)
    changed = np.where(CONTEXT_MASK[..., None], CONTEXT, 19.0).astype("float32")
    got = call(block, {"x": X, "context": changed}, **masks)
    assert_close(got, expected)


def test_lengths_reach_a_position_that_depends_on_them():
    position = RotaryEncoding(scaling=DynamicScaling(2.0, 3))
    block = TransformerBlock(3, 11, head_dim=6, layer_norm_epsilon=0.03, position=position)
    randomize(block)
    lengths = tensors({"lengths": np.array([3, 7], "int32")})
    parts = {
        "attention": lambda y: call(block.attention, {"x": y}, **lengths),
        "feed_forward": lambda y: call(block.feed_forward, {"x": y}),
    }
    got = call(block, {"x": X}, **lengths)
    assert_close(got.astype("float64"), formula(block, "layer", parts))
    differs = np.abs(got - call(block, {"x": X})).max(axis=(1, 2))
    assert differs[0] < 1e-5 and differs[1] > 1e-3


def test_scores_are_those_of_the_self_attention():
    block = TransformerBlock(3, 11, head_dim=2, causal=True)
    output, scores = call(block, {"x": X}, return_attention_scores=True)
    assert_close(output, call(block, {"x": X}))
    assert scores.shape == (B, 3, T, T)
    assert not np.triu(scores, 1).any()
    np.testing.assert_allclose(scores.sum(-1), 1.0, atol=1e-6)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_parts_of_another_policy_still_fit(dtype):
    block = TransformerBlock(
        attention=MultiHeadSelfAttention(3, 2), feed_forward=MoEFFN(3, 1, 11), dtype=dtype
    )
    output = outputs(block, {"x": X})
    assert keras.backend.standardize_dtype(output.dtype) == block.compute_dtype


def test_the_balance_loss_of_its_experts_knows_the_mask():
    block = TransformerBlock(3, head_dim=2, feed_forward=MoEFFN(3, 1, 11, balance_loss_weight=1.0))
    losses = []
    for x in (X, np.where(MASK[..., None], X, 5.0).astype("float32")):
        call_eagerly(block, {"x": x}, training=True, padding_mask=ops.convert_to_tensor(MASK))
        (loss,) = block.losses
        losses.append(float(loss))
    np.testing.assert_allclose(*losses, rtol=1e-6)


def test_a_clone_is_unbuilt_of_the_same_configuration_and_another_dtype():
    template = TransformerBlock(
        attention=MultiHeadSelfAttention(3, 2, name="mine"),
        cross_attention=MultiHeadCrossAttention(3, 2),
        feed_forward=FeedForward(11, kernel_initializer="he_normal"),
        normalization="rms",
        name="template",
    )
    template.build(X.shape, CONTEXT.shape)
    copy = clone(template, "block_0", keras.DTypePolicy("mixed_bfloat16"))
    assert not copy.built and copy.name == "block_0" and copy.attention.name == "mine"
    assert copy.attention is not template.attention
    for layer in (copy, copy.attention, copy.cross_attention, copy.feed_forward):
        assert layer.dtype_policy.name == "mixed_bfloat16"
    for config in (copy.get_config(), template.get_config()):
        assert config["normalization"] == "rms"
        assert config["feed_forward"]["config"]["intermediate_dim"] == 11
