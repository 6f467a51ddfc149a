"""The block is its formula over its parts, whichever way the parts were given."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_tx.layers import (
    FeedForward,
    MoEFFN,
    MultiHeadCrossAttention,
    MultiHeadSelfAttention,
    TransformerBlock,
)
from keras_tx.layers.layer import clone
from tests.contract.running import assert_close, call, call_eagerly, outputs, tensors

B, T, S, D, C = 2, 5, 7, 6, 13
X = np.random.default_rng(0).standard_normal((B, T, D)).astype("float32")
CONTEXT = np.random.default_rng(1).standard_normal((B, S, C)).astype("float32")
MASK = np.arange(T)[None] < [[T], [3]]
CONTEXT_MASK = np.arange(S)[None] < [[4], [S]]


def normal(x, kind, epsilon=0.03):
    if kind == "layer":
        x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon)


@pytest.mark.parametrize("normalization", ["layer", "rms"])
@pytest.mark.parametrize("order", ["pre", "post"])
def test_is_the_formula_of_its_parts(order, normalization):
    block = TransformerBlock(
        3,
        11,
        head_dim=2,
        cross_attention=True,
        normalization=normalization,
        normalization_order=order,
        layer_norm_epsilon=0.03,
    )
    block.build(X.shape, CONTEXT.shape)
    masks = tensors({"padding_mask": MASK, "context_mask": CONTEXT_MASK})
    got = call(block, {"x": X, "context": CONTEXT}, **masks)

    def attend(y):
        return call(block.attention, {"x": y}, padding_mask=masks["padding_mask"])

    def attend_context(y):
        return call(
            block.cross_attention,
            {"x": y, "context": CONTEXT},
            context_mask=masks["context_mask"],
        )

    y = X
    for part in (attend, attend_context, lambda y: call(block.feed_forward, {"x": y})):
        if order == "pre":
            y = y + part(normal(y, normalization).astype("float32"))
        else:
            y = normal(y + part(y), normalization).astype("float32")
    assert_close(got, y)


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
