"""What a configuration of transformers becomes, and which are refused."""

import keras
import pytest

from keras_tx import GPT, layers, weights
from keras_tx.weights.families import FAMILIES
from keras_tx.weights.options import Options
from keras_tx.weights.rotary import Rotary

GPT2 = {"vocab_size": 11, "n_positions": 16, "n_embd": 8, "n_layer": 2, "n_head": 2}
LLAMA = {
    "vocab_size": 11,
    "hidden_size": 8,
    "intermediate_size": 7,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "max_position_embeddings": 16,
}
VIT = {
    "hidden_size": 8,
    "intermediate_size": 7,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": [4, 6],
    "patch_size": 2,
}
SIZES = {"gpt2": GPT2, "bloom": {**GPT2, "hidden_size": 8}}


def sizes(kind):
    return SIZES.get(kind, VIT if FAMILIES[kind].model is not GPT else LLAMA)


def small(kind, **options):
    """A configuration with the fewest options."""
    return {**sizes(kind), "model_type": kind, **options}


def rotary(**options):
    return Rotary(Options(small("llama", **options)))


def encoding(**options):
    config = rotary(**options).encoding(8).get_config()
    del config["name"]
    return config


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"rope_theta": 500.0}, {"rope_theta": 500.0, "rope_type": "default"}),
        (
            {"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_theta": 500.0},
            {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0},
        ),
        (
            {
                "rope_scaling": {"type": "yarn", "factor": 2.0},
                "original_max_position_embeddings": 8,
            },
            {"rope_type": "yarn", "original_max_position_embeddings": 8, "factor": 2.0},
        ),
        (
            {"rope_scaling": {"rope_type": "yarn", "original_max_position_embeddings": 4}},
            {"rope_type": "yarn", "original_max_position_embeddings": 4, "factor": 4.0},
        ),
    ],
)
def test_old_and_new_spellings_of_rotary_parameters(old, new):
    assert encoding(**old) == encoding(rope_parameters=new)


def test_options_beside_the_rotary_parameters_of_gpt_neox():
    options = Options({**LLAMA, "model_type": "gpt_neox", "rotary_pct": 0.5, "rotary_emb_base": 50})
    layer = Rotary(options, partial=0.25).encoding(8)
    assert (layer.rotary_dim, layer.max_wavelength) == (4, 50.0)
    assert Rotary(Options({**LLAMA, "model_type": "gpt_neox"}), partial=0.25).encoding(8).rotary_dim


def test_dynamic_scaling_begins_where_the_positions_of_the_configuration_end():
    found = rotary(rope_parameters={"rope_type": "dynamic", "factor": 2.5})
    assert found.max_sequence_length() == 40
    assert found.encoding(8).scaling.original_length == 16


@pytest.mark.skipif(
    keras.backend.backend() != "torch",
    reason="what is taken for granted is the same on every backend: once is enough",
)
@pytest.mark.parametrize("kind", FAMILIES)
def test_few_options_are_enough(kind):
    even = {"qwen3": {"head_dim": 4}, "gemma2": {"head_dim": 4}, "gpt_neox": {"rotary_pct": 0.5}}
    assert isinstance(weights.build(small(kind, **even.get(kind, {}))), FAMILIES[kind].model)


def arguments(**options):
    """Those of the model, which need not be built."""
    config = small(**options)
    return FAMILIES[config["model_type"]].arguments(Options(config))


def templates(**options):
    """The block of each layer."""
    found = arguments(**options)
    block, num_layers = found["block"], found["num_layers"]
    return block if isinstance(block, list) else [block] * num_layers


def windows(**options):
    return [block.attention.window for block in templates(**options)]


def test_windows_of_the_layers():
    used = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2}
    full, sliding = "full_attention", "sliding_attention"
    assert windows(kind="qwen2", **used) == [None, None, 5]
    assert windows(kind="qwen2", **{**used, "use_sliding_window": False}) == [None] * 3
    assert windows(kind="qwen3", **used, layer_types=[sliding, full, sliding]) == [5, None, 5]
    assert windows(kind="gemma2", sliding_window=5) == [5, None, 5]
    assert windows(kind="mistral", sliding_window=5) == [5] * 3
    assert windows(kind="mistral", sliding_window=None) == [None] * 3
    assert windows(kind="llama", sliding_window=5) == [None] * 3


def test_changes_replace_and_complete():
    gpt = weights.build(small("llama"), end_token_id=3, max_sequence_length=5)
    assert (gpt.end_token_id, gpt.max_sequence_length) == (3, 5)


def test_names_of_the_classes():
    named = arguments(kind="vit", id2label={"1": "dog", "0": "cat", "10": "owl", "2": "emu"})
    assert named["class_names"] == ["cat", "dog", "emu", "owl"]
    unnamed = arguments(kind="vit", id2label={0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"})
    assert unnamed["num_classes"] == 3 and "class_names" not in unnamed


LONGROPE = {"rope_type": "longrope", "short_factor": [1.0, 1.0], "long_factor": [2.0, 2.0]}


def test_other_names_of_longrope_for_phi3():
    for name in ("longrope", "su", "yarn"):
        block = templates(kind="phi3", rope_scaling={**LONGROPE, "rope_type": name})[0]
        assert isinstance(block.attention.position.scaling, layers.LongRopeScaling)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "t5"}, "`model_type` must be one of bloom, .* Received: 't5'"),
        ({}, "Received: None"),
        ({"model_type": "clip", "vision_config": {}}, "such as its `vision_config`"),
        ({"model_type": "llama"}, "llama model must have `num_attention_heads`|`hidden_size`"),
        ({"model_type": "gpt2", "n_head": 2}, "must have `n_positions`|`vocab_size`"),
        (small("llama", quantization_config={"bits": 4}), "`quantization_config` of a llama"),
        (small("llama", per_layer_config={"0": {}}), "`per_layer_config`"),
        (small("llama", hidden_act="xielu"), "`hidden_act` .* 'silu', .* Received: 'xielu'"),
        (small("gpt2", scale_attn_by_inverse_layer_idx=True), "scale_attn_by_inverse_layer_idx"),
        (small("gpt2", scale_attn_weights=False), "`scale_attn_weights`"),
        (small("gpt2", add_cross_attention=True), "`add_cross_attention`"),
        (small("bloom", apply_residual_connection_post_layernorm=True), "apply_residual"),
        (small("gemma2", use_bidirectional_attention=True), "`use_bidirectional_attention`"),
        (small("siglip_vision_model", vision_use_head=False), "`vision_use_head`"),
        (small("qwen2", layer_types=["full_attention"]), "`layer_types` must be 3 of"),
        (small("qwen2", layer_types=["chunked_attention"] * 3), "`layer_types` must be 3 of"),
        (small("qwen2", layer_types=["sliding_attention"] * 3), "give its `sliding_window`"),
        (small("llama", rope_parameters={"rope_type": "proportional"}), "`rope_type` must be"),
        (small("llama", rope_parameters={"rope_type": "linear"}), "'linear' must have `factor`"),
        (
            small("llama", rope_parameters={"mrope_section": [1, 1]}),
            "here: mrope_section",
        ),
        (small("gemma2", rope_parameters={"full_attention": {}}), "here: full_attention"),
        (small("llama", partial_rotary_factor=0.5), "turns whole heads"),
    ],
)
def test_what_cannot_be_honoured_is_refused(config, message):
    with pytest.raises(ValueError, match=message):
        weights.build(config)
