"""Half precision: values against float32, and the policy of every child (law 5)."""

import functools

import keras
import numpy as np
import pytest

import keras_tx as ktx
from tests.models import tools

# Of the largest logit: a few roundings of 8 and of 11 bits.
TOLERANCES = {"mixed_bfloat16": 0.05, "mixed_float16": 0.006}


@functools.cache
def reference_logits(variant):
    model = tools.make_vit() if variant == "vit" else tools.make_gpt(variant)
    return tools.forward(model)(tools.images(3) if variant == "vit" else tools.tokens(3, 7))


@pytest.mark.parametrize("policy", sorted(TOLERANCES))
@pytest.mark.parametrize("variant", ["rotary", "experts"])
def test_gpt_is_near_float32(variant, policy):
    token_ids = tools.tokens(3, 7)
    reference = reference_logits(variant)
    gpt = tools.make_gpt(variant, dtype=policy)
    logits = tools.forward(gpt)(token_ids)
    assert logits.dtype == np.float32
    if variant == "experts":  # a rounding may send a token to another expert
        near = np.abs(logits - reference).max(-1) < TOLERANCES[policy] * np.abs(reference).max()
        assert near.mean() > 0.8
    else:
        tools.assert_close(logits, reference, TOLERANCES[policy])
    assert np.abs(logits - reference).max() > 1e-5


@pytest.mark.parametrize("policy", sorted(TOLERANCES))
def test_vit_is_near_float32(policy):
    reference = reference_logits("vit")
    vit = tools.make_vit(dtype=policy)
    logits = tools.forward(vit)(tools.images(3))
    assert logits.dtype == np.float32
    tools.assert_close(logits, reference, TOLERANCES[policy])


@pytest.mark.parametrize("variant", ["learned", "experts", "list"])
def test_the_policy_reaches_every_child(variant):
    gpt = tools.make_gpt(variant, dtype="mixed_bfloat16")
    layers = [x for x in gpt._flatten_layers(include_self=False)]
    assert len(layers) > 10
    for layer in layers:
        expected = "float32" if layer.name == "router" else "mixed_bfloat16"
        assert layer.dtype_policy.name == expected, layer.path
    assert {str(weight.dtype) for weight in gpt.weights} == {"float32"}


def test_the_cache_in_half_precision_gives_the_same_text():
    gpt = tools.make_gpt("rotary", dtype="mixed_bfloat16")
    result = gpt.generate([[1, 2, 3], [4]], max_new_tokens=5, return_dict=True)
    sequence = np.array([[1, 2, 3, *result["token_ids"][0]]], "int32")
    logits = tools.forward(gpt)(sequence[:, :-1])[0, 2:].astype("float64")
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    chosen = log_p[np.arange(5), result["token_ids"][0]]
    assert (chosen > log_p.max(-1) - 0.1).all()  # the greatest, or one rounding from it
    np.testing.assert_allclose(result["scores"][0], chosen.sum(), atol=0.2)


def test_fit():
    x, y = tools.tokens(6, 7), tools.tokens(6, 7, seed=6)
    gpt = tools.make_gpt(dtype="mixed_float16")
    gpt.compile(keras.optimizers.Adam(0.02))
    assert isinstance(gpt.optimizer, keras.optimizers.LossScaleOptimizer)
    history = gpt.fit(x, y, batch_size=6, epochs=8, verbose=0).history["loss"]
    assert np.isfinite(history).all() and history[-1] < 0.7 * history[0]


def test_fractions_of_a_pixel_survive():
    # Keras casts floating inputs to half precision before `call`; 200.4 would become 200.
    seen = []

    class Watched(ktx.ViT):
        def _embed(self, images, training):
            seen.append(keras.backend.standardize_dtype(images.dtype))
            return super()._embed(images, training)

    vit = Watched(**tools.VIT_SIZES, dtype="mixed_bfloat16")
    vit(keras.Input((*tools.VIT_SIZES["image_size"], 2), dtype="float32"))
    assert set(seen) == {"float32"}
