"""Bad input is refused with what was expected, what was received and how to mend it (law 10)."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_tx as ktx
from keras_tx import layers
from tests.models import tools

NO_BIAS = keras.layers.LayerNormalization(center=False)


def plain_mixer():
    """A block whose feed-forward network has no projection of a known name."""
    plain = keras.layers.Dense(10, name="plain")
    return layers.TransformerBlock(3, head_dim=4, causal=True, feed_forward=plain)


BYTE = ktx.data.train_tokenizer([], kind="byte")
CONSTRUCTION = [
    ("gpt", {"vocabulary_size": None}, "Give `vocabulary_size` or a `tokenizer`"),
    ("gpt", {"vocabulary_size": 0}, "`vocabulary_size` must be positive.*Received: 0"),
    ("gpt", {"tokenizer": BYTE}, "hold all of the tokenizer's 256 ids. Received: 13"),
    ("gpt", {"tokenizer": "words"}, "Expected a tokenizer of keras-nlp.*Received 'words'"),
    ("gpt", {"num_layers": 0}, "must be positive. Received: num_layers=0, hidden_dim=10"),
    ("gpt", {"hidden_dim": None}, "must be positive. Received: num_layers=2, hidden_dim=None"),
    ("gpt", {"num_heads": 0}, "`num_heads` must be a positive integer. Received: 0"),
    ("gpt", {"head_dim": None}, "divisible by num_heads=3, or `head_dim` be given.*dimension 10"),
    ("gpt", {"num_key_value_heads": 2}, "must be a multiple of `num_key_value_heads`.*num_heads=3"),
    ("gpt", {"max_sequence_length": 0}, "`max_sequence_length` must be a positive integer.*: 0"),
    ("gpt", {"max_sequence_length": 0, "position": None}, "`max_sequence_length` must be a positi"),
    ("gpt", {"position": "absolute"}, "`position` must be one of .*Received: 'absolute'"),
    ("gpt", {"position": "rotary", "head_dim": 5}, "must be known and even"),
    ("gpt", {"position": "rotary", "block": tools.window_block()}, "pass the encoding to its att"),
    ("gpt", {"window": 0}, "`window` must be a positive integer or None. Received: 0"),
    ("gpt", {"normalization": "batch"}, "`normalization` must be one of .*Received: 'batch'"),
    ("gpt", {"normalization_order": "mid"}, "`normalization_order` must be one of .*'mid'"),
    ("gpt", {"block": []}, "must have num_layers=2 of them. Received: 0"),
    ("gpt", {"block": [tools.window_block()]}, "must have num_layers=2 of them. Received: 1"),
    ("gpt", {"block": "wide"}, "must be a TransformerBlock or a list of them. Received: 'wide'"),
    ("gpt", {"block": layers.FeedForward()}, "must be a TransformerBlock or a list.*FeedForward"),
    ("gpt", {"block": layers.TransformerBlock(3, head_dim=4)}, "must be causal.*causal=True"),
    (
        "gpt",
        {"block": layers.TransformerBlock(3, head_dim=4, causal=True, cross_attention=True)},
        "needs a context, which this model has not.*cross_attention",
    ),
    (
        "gpt",
        {"block": tools.window_block(), "num_heads": 3, "use_bias": False},
        "for blocks made from numbers: give them to the `block`.*: num_heads=3, use_bias=False",
    ),
    (
        "gpt",
        {"normalization": NO_BIAS, "layer_norm_epsilon": 1e-3},
        "give it to the `normalization` passed in.*=0.001",
    ),
    ("gpt", {"logit_soft_cap": 0.0}, "`logit_soft_cap` must be positive or None.*: 0.0"),
    ("gpt", {"block": plain_mixer(), "depth_scaled_initialization": True}, "plain, which has none"),
    ("gpt", {"pad_token_id": 13}, "`pad_token_id` must be from 0 to 12.*Received: 13"),
    ("gpt", {"start_token_id": -1}, "`start_token_id` must be from 0 to 12.*Received: -1"),
    (
        "gpt",
        {"start_token_id": 1, "end_token_id": 99},
        "`end_token_id` must be from 0 to 12.*Received: 99",
    ),
    ("vit", {"num_classes": None}, "Give `num_classes` or `class_names`"),
    ("vit", {"class_names": ["a", "b"]}, "must name all classes. Received: num_classes=5, 2 names"),
    ("vit", {"num_layers": None}, "must be positive. Received: num_layers=None, hidden_dim=8"),
    ("vit", {"num_heads": 3}, "divisible by num_heads=3.*Received: last dimension 8"),
    ("vit", {"patch_size": 4}, "must be multiples of patch_size=4. Received: 6 x 9"),
    ("vit", {"pooling": "max"}, "`pooling` must be one of .*Received: 'max'"),
    ("vit", {"position": "rotary"}, "`position` must be one of .*Received: 'rotary'"),
    ("vit", {"position": "sinusoidal", "hidden_dim": 6}, "divisible by 4. Received: 6"),
    ("vit", {"pooling": "mean", "distillation_token": True}, 'use pooling="class_token".*: .mean'),
    ("vit", {"num_register_tokens": -1}, "`num_register_tokens` must be an integer from 0.*: -1"),
    (
        "vit",
        {"pooling": "attention", "block": layers.TransformerBlock(2)},
        r"beside a `block` pass AttentionPooling\(num_heads",
    ),
    ("vit", {"block": []}, "must have num_layers=2 of them. Received: 0"),
    (
        "vit",
        {"block": layers.TransformerBlock(2), "activation": "relu"},
        "give them to the `block`.*: activation='relu'",
    ),
]


@pytest.mark.parametrize("model, changes, message", CONSTRUCTION)
def test_construction(model, changes, message):
    model_class = {"gpt": ktx.GPT, "vit": ktx.ViT}[model]
    arguments = {"gpt": tools.gpt_arguments, "vit": tools.vit_arguments}[model](**changes)
    with pytest.raises(ValueError, match=message):
        model_class(**arguments)


@pytest.mark.parametrize("model_class", [ktx.GPT, ktx.ViT])
def test_an_unknown_size(model_class):
    with pytest.raises(ValueError, match="has no size 'huge'. Known: .*mini"):
        model_class.from_size("huge")


@pytest.fixture(scope="module")
def gpt():
    model = tools.make_gpt("rotary")
    model.compile("sgd")
    return model


@pytest.fixture(scope="module")
def vit():
    model = tools.make_vit()
    model.compile("sgd")
    return model


IDS = tools.tokens(2, 5)
INPUTS = [
    (IDS + 9, "`token_ids` must be from 0 to 12.*another tokenizer"),
    (IDS - 1, "`token_ids` must be from 0 to 12.*Received: from -1"),
    (IDS.astype("float32"), "must be integers of shape .batch, length.*dtype float32"),
    (IDS[0], "must be integers of shape .batch, length.*Received: shape .5,."),
    (tools.tokens(2, 18), "at most max_sequence_length=17 long. Received: length 18. Shorten it"),
    ({"ids": IDS}, "must be `token_ids`, or a dictionary of it.*Received: .'ids'."),
    ({"token_ids": IDS, "segments": IDS}, "Received: .'segments', 'token_ids'."),
    ({"token_ids": IDS, "segment_ids": IDS[:, :3]}, "must have the shape of `token_ids`"),
    ({"token_ids": IDS, "positions": IDS + 9}, "`positions` must be from 0 to 16"),
    ({"token_ids": IDS, "lengths": IDS}, "`lengths` must have one number for each row"),
]


@pytest.mark.parametrize("inputs, message", INPUTS)
def test_inputs_of_gpt(gpt, inputs, message):
    for call in (gpt, gpt.predict, gpt.evaluate, gpt.fit):
        with pytest.raises(ValueError, match=message):
            call(inputs)


def test_targets_of_gpt(gpt):
    for call in (gpt.fit, gpt.evaluate):
        with pytest.raises(ValueError, match="targets must be from 0 to 12.*Received: from"):
            call(IDS, IDS + 9)
        with pytest.raises(ValueError, match="targets must be integers of shape .2, 5.*.2, 4."):
            call(IDS, IDS[:, 1:])


def test_data_that_would_fail_late(gpt):
    """Keras' own errors come after compute, and on JAX after it has taken the weights away."""
    for call in (gpt.train_on_batch, gpt.test_on_batch, gpt.predict_on_batch):
        with pytest.raises(ValueError, match="`token_ids` must be from 0 to 12"):
            call(IDS + 9)
    for call in (gpt.train_on_batch, gpt.test_on_batch):
        with pytest.raises(ValueError, match="targets must be from 0 to 12"):
            call(IDS, IDS + 9)
    with pytest.raises(ValueError, match="targets must be from 0 to 12"):
        gpt.fit(IDS, IDS, validation_data=(IDS, IDS + 9))
    for call in (gpt.fit, gpt.evaluate, gpt.train_on_batch, gpt.test_on_batch):
        with pytest.raises(ValueError, match="must be one array of integers.*Received: dict"):
            call(IDS, {"targets": IDS})
        with pytest.raises(ValueError, match="must be .2,., a weight for each row, or .2, 5.,"):
            call(IDS, IDS, sample_weight=np.ones((2, 4)))
        with pytest.raises(ValueError, match="at least one row. Received: none"):
            call(IDS[:0], IDS[:0])
    for call in (gpt.predict, gpt.predict_on_batch):
        with pytest.raises(ValueError, match="at least one row. Received: none"):
            call(IDS[:0])


def test_images_and_targets_of_vit(vit):
    for images in (np.zeros((2, 6, 8, 2)), np.zeros((2, 6, 9, 3)), np.zeros((6, 9, 2), "uint8")):
        for call in (vit, vit.predict, vit.evaluate, vit.fit):
            with pytest.raises(ValueError, match="with .6, 9, 2.. Received: shape .*Resize them"):
                call(images)
    for targets in ([0, 5], [-1, 0]):
        with pytest.raises(ValueError, match="targets must be from 0 to 4"):
            vit.fit(tools.images(2), np.array(targets))


def test_tensors_of_a_wrong_size(gpt, vit):
    with pytest.raises(ValueError, match="at most max_sequence_length=17 long"):
        gpt(ops.convert_to_tensor(tools.tokens(2, 18)))
    with pytest.raises(ValueError, match="Resize them"):
        vit(ops.zeros((2, 6, 6, 2)))
