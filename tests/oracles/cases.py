"""The models of transformers that ours are held against, each tiny and of sizes that differ."""

from typing import NamedTuple

VOCABULARY, CHANNELS = 13, 2
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "intermediate_size": 7,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "max_position_embeddings": 17,
    "tie_word_embeddings": False,
}
GROUPED = {**TEXT, "num_key_value_heads": 1, "rms_norm_eps": 1e-3}
VISION = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "image_size": (6, 9),
    "patch_size": (2, 3),
    "num_channels": CHANNELS,
    "layer_norm_eps": 1e-3,
}
SQUARE = {**VISION, "image_size": 6, "patch_size": 2}
WIDE = {"intermediate_size": 7}
CLASSES = {"num_labels": 5}


class Case(NamedTuple):
    """A class of transformers, its configuration, and the length of the sequences it reads."""

    name: str
    model: str
    config: dict
    length: int = 11

    @property
    def is_decoder(self):
        return self.model.endswith(("ForCausalLM", "LMHeadModel"))

    @property
    def scales_positions(self):
        return self.config.get("rope_parameters", {}).get("rope_type", "default") != "default"


def rope(kind, **parameters):
    """Wavelengths below and above the original length, so that each pair is changed in its way."""
    return {"rope_type": kind, "rope_theta": 100.0, **parameters}


def scaled_llama(kind, max_position_embeddings=64, **parameters):
    """Heads of six pairs of features, and sequences longer than those of training, 32."""
    config = {
        **GROUPED,
        "head_dim": 12,
        "max_position_embeddings": max_position_embeddings,
        "rope_parameters": rope(kind, **parameters),
    }
    return Case(f"Llama, {kind} rope", "LlamaForCausalLM", config, 37)


def phi3(name, length, **parameters):
    config = {**GROUPED, "pad_token_id": 0, "max_position_embeddings": 64}
    config |= {"original_max_position_embeddings": 23, "rope_parameters": parameters}
    return Case(f"Phi-3, {name}", "Phi3ForCausalLM", config, length)


# Heads of eight features, of which six are turned.
LONGROPE = rope(
    "longrope",
    partial_rotary_factor=0.75,
    short_factor=[1.0, 1.25, 1.5],
    long_factor=[1.5, 2.5, 4.0],
)


def gpt_neox(name, fraction, **config):
    parameters = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": fraction}
    config = {**TEXT, "layer_norm_eps": 1e-3, **config}
    return Case(
        f"GPT-NeoX, {name}", "GPTNeoXForCausalLM", {**config, "rope_parameters": parameters}
    )


TEXT_CASES = [
    Case(
        "GPT-2",
        "GPT2LMHeadModel",
        {"vocab_size": VOCABULARY, "n_positions": 17, "n_embd": 24, "n_layer": 2, "n_head": 3},
    ),
    gpt_neox("whole heads turned", 1.0),
    gpt_neox("a quarter turned", 0.25),
    gpt_neox("a quarter turned, in series", 0.25, use_parallel_residual=False),
    Case(
        "Bloom",
        "BloomForCausalLM",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 24,
            "n_layer": 2,
            "n_head": 3,
            "layer_norm_epsilon": 1e-3,
        },
    ),
    Case("Llama", "LlamaForCausalLM", GROUPED),
    Case(
        "Llama, biases, tied",
        "LlamaForCausalLM",
        {**GROUPED, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    scaled_llama("linear", factor=4.0),
    scaled_llama("dynamic", max_position_embeddings=23, factor=4.0),
    scaled_llama(
        "yarn", factor=2.0, original_max_position_embeddings=32, beta_fast=4.0, beta_slow=0.5
    ),
    scaled_llama(
        "llama3",
        factor=8.0,
        original_max_position_embeddings=32,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
    ),
    Case("Mistral, window 5", "MistralForCausalLM", {**GROUPED, "sliding_window": 5}),
    phi3("whole heads turned", 11, rope_type="default", rope_theta=1e4),
    phi3("longrope, short", 19, **LONGROPE),
    phi3("longrope, long", 37, **LONGROPE),
    Case("Qwen2", "Qwen2ForCausalLM", GROUPED),
    Case(
        "Qwen2, windows from layer 1",
        "Qwen2ForCausalLM",
        {**GROUPED, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    Case("Qwen3", "Qwen3ForCausalLM", {**GROUPED, "head_dim": 4}),
    Case(
        "Gemma 2",
        "Gemma2ForCausalLM",
        {
            **GROUPED,
            "head_dim": 4,
            "query_pre_attn_scalar": 9,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 20.0,
            "sliding_window": 5,
            "tie_word_embeddings": True,
            "attn_implementation": "eager",
        },
    ),
]

VISION_CASES = [
    Case("ViT", "ViTForImageClassification", {**VISION, **WIDE, **CLASSES}),
    Case(
        "ViT, no bias of queries and keys",
        "ViTForImageClassification",
        {**VISION, **WIDE, **CLASSES, "qkv_bias": False},
    ),
    Case("DeiT", "DeiTForImageClassificationWithTeacher", {**VISION, **WIDE, **CLASSES}),
    Case(
        "DINOv2",
        "Dinov2ForImageClassification",
        {**VISION, **CLASSES, "mlp_ratio": 2, "layerscale_value": 0.7},
    ),
    Case(
        "DINOv2, gated",
        "Dinov2ForImageClassification",
        {**VISION, **CLASSES, "mlp_ratio": 2, "use_swiglu_ffn": True},
    ),
    Case(
        "DINOv2, 4 registers",
        "Dinov2WithRegistersForImageClassification",
        {**VISION, **CLASSES, "mlp_ratio": 2, "num_register_tokens": 4, "layerscale_value": 0.7},
    ),
    Case("SigLIP, vision", "SiglipVisionModel", {**SQUARE, **WIDE}),
    Case("CLIP, vision", "CLIPVisionModel", {**SQUARE, **WIDE}),
]

CASES = {case.name: case for case in [*TEXT_CASES, *VISION_CASES]}
