"""Small models of prime sizes, and what the tests of models share."""

import keras
import numpy as np
from keras import ops

import keras_tx as ktx
from keras_tx import kernels, layers

VOCABULARY, LENGTH = 13, 17
GPT_SIZES = {
    "vocabulary_size": VOCABULARY,
    "num_layers": 2,
    "hidden_dim": 10,
    "num_heads": 3,
    "intermediate_dim": 7,
    "head_dim": 4,
    "max_sequence_length": LENGTH,
}
VIT_SIZES = {
    "num_classes": 5,
    "num_layers": 2,
    "hidden_dim": 8,
    "num_heads": 2,
    "intermediate_dim": 7,
    "image_size": (6, 9),
    "patch_size": (2, 3),
    "num_channels": 2,
}


def moe_block(**changes):
    return layers.TransformerBlock(
        attention=layers.MultiHeadSelfAttention(
            4, 6, 2, causal=True, position=layers.RotaryEncoding(interleaved=True)
        ),
        feed_forward=layers.MoEFFN(3, top_k=2, intermediate_dim=7, balance_loss_weight=0.7),
        **changes,
    )


def window_block(**changes):
    return layers.TransformerBlock(
        3, 5, head_dim=4, num_key_value_heads=1, causal=True, window=2, **changes
    )


def biased_block(position, **changes):
    return layers.TransformerBlock(
        attention=layers.MultiHeadSelfAttention(2, 4, causal=True, position=position, **changes)
    )


# Every kind of position, attention, feed-forward network, normalization and stack.
GPT_VARIANTS = {
    "learned": lambda: {},
    "sinusoidal": lambda: {"position": "sinusoidal", "tie_embeddings": False},
    "none": lambda: {
        "position": None,
        "use_bias": False,
        "normalization_order": "parallel",
        "scale_embeddings": True,
        "embedding_normalization": True,
        "logit_soft_cap": 5.0,
    },
    "rotary": lambda: {
        "position": "rotary",
        "num_heads": 4,
        "num_key_value_heads": 2,
        "window": 3,
        "gated": True,
        "normalization": "rms",
        "normalization_order": "sandwich",
    },
    "post_norm": lambda: {"normalization_order": "post", "activation": "relu"},
    "experts": lambda: {"block": moe_block(normalization="rms")},
    "list": lambda: {
        "block": [window_block(gated=True), moe_block(normalization_order="post")],
        "position": layers.SinusoidalEncoding(max_wavelength=100.0),
    },
    "biases": lambda: {
        "block": [
            biased_block(layers.AlibiBias(), window=3, num_global_tokens=2, query_key_norm=True),
            biased_block(layers.RelativePositionBias(8, 7, bidirectional=False), sinks=True),
        ],
    },
}


def randomize(model, seed=3, kernel_scale=0.5):
    """Weights that hide nothing: no bias is 0, no gain is 1, and the logits are far apart."""
    generator = np.random.default_rng(seed)
    for weight in model.weights:
        name = weight.path.rsplit("/", 1)[-1]
        scale = 0.2 if name in ("bias", "gamma", "beta", "scale") else kernel_scale
        value = scale * generator.standard_normal(weight.shape)
        weight.assign(value + (name in ("gamma", "scale")))
    return model


def arguments(sizes, changes):
    """The sizes with changes, of which a `block` replaces the block's own sizes."""
    if changes.get("block") is not None:
        of_block = ("num_heads", "intermediate_dim", "head_dim")
        sizes = {name: size for name, size in sizes.items() if name not in of_block}
    return {**sizes, **changes}


def gpt_arguments(**changes):
    return arguments(GPT_SIZES, changes)


def vit_arguments(**changes):
    return arguments(VIT_SIZES, changes)


def make_gpt(variant="learned", **changes):
    return randomize(ktx.GPT(**gpt_arguments(**{**GPT_VARIANTS[variant](), **changes})))


def make_vit(**changes):
    return randomize(ktx.ViT(**vit_arguments(**changes)))


def tokens(*shape, low=0, seed=5):
    return np.random.default_rng(seed).integers(low, VOCABULARY, shape).astype("int32")


def images(batch, seed=7):
    shape = (batch, *VIT_SIZES["image_size"], VIT_SIZES["num_channels"])
    return np.random.default_rng(seed).integers(0, 256, shape).astype("uint8")


def forward(model):
    """The model as one compiled function from numpy to numpy; weight changes are seen."""
    run = kernels.compiled(lambda inputs: model(inputs, training=False), model.variables)

    def call(inputs):
        inputs = keras.tree.map_structure(ops.convert_to_tensor, inputs)
        outputs = run(inputs)
        assert keras.backend.standardize_dtype(outputs.dtype) == "float32"  # numpy may widen it
        return ops.convert_to_numpy(outputs)

    return call


def gradients(model, x, y, sample_weight=None, **compile_arguments):
    """The logs and the gradients of one training step, read off plain gradient descent."""
    before = model.get_weights()
    if compile_arguments or not model.compiled or model.optimizer.name != "gradients":
        eagerly = keras.backend.backend() == "tensorflow"  # no trace for a single step
        descent = keras.optimizers.SGD(1.0, name="gradients")
        model.compile(descent, **{"run_eagerly": eagerly, **compile_arguments})
    logs = model.train_on_batch(x, y, sample_weight, return_dict=True)
    after = model.get_weights()
    model.set_weights(before)
    return logs, [a - b for a, b in zip(before, after, strict=True)]


def assert_close(actual, reference, tolerance=1e-5):
    """Within `tolerance * max(1, max|reference|)`; lists are compared item by item."""
    if isinstance(reference, (list, tuple)):
        assert len(actual) == len(reference)
        for one, other in zip(actual, reference, strict=True):
            assert_close(one, other, tolerance)
        return
    actual, reference = (
        ops.convert_to_numpy(value) if ops.is_tensor(value) else np.asarray(value)
        for value in (actual, reference)
    )
    reference = reference.astype("float64")
    atol = tolerance * max(1.0, np.abs(reference).max(initial=0.0))
    np.testing.assert_allclose(actual.astype("float64"), reference, rtol=0, atol=atol)


def numpy_loss(logits, targets, weights):
    """Mean cross-entropy and accuracy over the weighted targets, in float64."""
    logits = np.asarray(logits, "float64")
    shifted = logits - logits.max(-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    chosen = np.take_along_axis(log_p, targets[..., None], -1)[..., 0]
    weights = np.broadcast_to(np.asarray(weights, "float64"), targets.shape)
    right = logits.argmax(-1) == targets
    return -(chosen * weights).sum() / weights.sum(), (right * weights).sum() / weights.sum()
