"""GPT equals transformers' Llama, GPT-NeoX and Gemma 2 with their weights copied."""

import keras
import numpy as np
import pytest

import keras_tx as ktx
from keras_tx import layers
from tests.models import tools
from tests.oracles.copying import State, randomized, transformers

V, D, F, N, LAYERS = 13, 12, 7, 3, 2
SIZES = {
    "vocab_size": V,
    "hidden_size": D,
    "intermediate_size": F,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": N,
    "max_position_embeddings": 17,
    "tie_word_embeddings": False,
}
OURS = {"max_sequence_length": 17, "position": "rotary", "use_bias": False}


def llama():
    hugging = transformers()
    config = hugging.LlamaConfig(**SIZES, num_key_value_heads=1, rms_norm_eps=1e-3)
    model = randomized(hugging.LlamaForCausalLM(config))
    gpt = ktx.GPT(
        V,
        LAYERS,
        D,
        N,
        F,
        num_key_value_heads=1,
        gated=True,
        normalization="rms",
        layer_norm_epsilon=1e-3,
        tie_embeddings=False,
        **OURS,
    )
    state = State(model)
    for index, block in enumerate(gpt.blocks):
        h = f"model.layers.{index}"
        state.norm(block.attention_norm, f"{h}.input_layernorm")
        state.norm(block.feed_forward_norm, f"{h}.post_attention_layernorm")
        copy_gated(state, block, h)
    state.norm(gpt.output_norm, "model.norm")
    copy_embeddings(state, gpt, "model.embed_tokens", "lm_head")
    return model, gpt, state


def gpt_neox():
    hugging = transformers()
    config = hugging.GPTNeoXConfig(
        **SIZES, rope_parameters={"rope_type": "default", "rope_theta": 1e4}, layer_norm_eps=1e-3
    )
    config.rope_parameters["partial_rotary_factor"] = 1.0
    model = randomized(hugging.GPTNeoXForCausalLM(config))
    gpt = ktx.GPT(
        V,
        LAYERS,
        D,
        N,
        F,
        max_sequence_length=17,
        position="rotary",
        normalization_order="parallel_two_norms",
        layer_norm_epsilon=1e-3,
        tie_embeddings=False,
    )
    state = State(model)
    # Theirs holds query, key and value of one head side by side.
    order = np.arange(3 * D).reshape(N, 3, D // N).transpose(1, 0, 2).ravel()
    for index, block in enumerate(gpt.blocks):
        h = f"gpt_neox.layers.{index}"
        state.norm(block.attention_norm, f"{h}.input_layernorm")
        state.norm(block.feed_forward_norm, f"{h}.post_attention_layernorm")
        query_key_value = block.attention.query_key_value_dense
        state.dense(query_key_value, f"{h}.attention.query_key_value", order=order)
        state.dense(block.attention.output_dense, f"{h}.attention.dense")
        state.dense(block.feed_forward.inner_dense, f"{h}.mlp.dense_h_to_4h")
        state.dense(block.feed_forward.output_dense, f"{h}.mlp.dense_4h_to_h")
    state.norm(gpt.output_norm, "gpt_neox.final_layer_norm")
    copy_embeddings(state, gpt, "gpt_neox.embed_in", "lm_head")
    return model, gpt, state


def gemma2():
    hugging = transformers()
    config = hugging.Gemma2Config(
        **{**SIZES, "tie_word_embeddings": True},
        num_key_value_heads=1,
        head_dim=4,
        query_pre_attn_scalar=4,
        attn_logit_softcapping=None,
        final_logit_softcapping=20.0,
        sliding_window=5,
        layer_types=["sliding_attention", "full_attention"],
        rms_norm_eps=1e-3,
        attn_implementation="eager",
    )
    model = randomized(hugging.Gemma2ForCausalLM(config))
    blocks = [
        layers.TransformerBlock(
            N,
            F,
            num_key_value_heads=1,
            head_dim=4,
            causal=True,
            window=window,
            position=layers.RotaryEncoding(),
            gated=True,
            activation="gelu_tanh",
            normalization="rms",
            normalization_order="sandwich",
            layer_norm_epsilon=1e-3,
            use_bias=False,
        )
        for window in (5, None)
    ]
    gpt = ktx.GPT(
        V,
        LAYERS,
        D,
        max_sequence_length=17,
        block=blocks,
        scale_embeddings=True,
        logit_soft_cap=20.0,
    )
    state = State(model)
    for index, block in enumerate(gpt.blocks):
        h = f"model.layers.{index}"
        for layer, name in (
            (block.attention_norm, "input_layernorm"),
            (block.attention_output_norm, "post_attention_layernorm"),
            (block.feed_forward_norm, "pre_feedforward_layernorm"),
            (block.feed_forward_output_norm, "post_feedforward_layernorm"),
        ):
            state.norm(layer, f"{h}.{name}", offset=1.0)
        copy_gated(state, block, h)
    state.norm(gpt.output_norm, "model.norm", offset=1.0)
    copy_embeddings(state, gpt, "model.embed_tokens", "lm_head")
    return model, gpt, state


def copy_gated(state, block, name):
    """The attention and the gated feed-forward network, as Llama calls them."""
    projections = [f"{name}.self_attn.{part}_proj" for part in "qkv"]
    state.dense(block.attention.query_key_value_dense, *projections)
    state.dense(block.attention.output_dense, f"{name}.self_attn.o_proj")
    inner = f"{name}.mlp.gate_proj", f"{name}.mlp.up_proj"
    state.dense(block.feed_forward.inner_dense, *inner)
    state.dense(block.feed_forward.output_dense, f"{name}.mlp.down_proj")


def copy_embeddings(state, gpt, name, head):
    embeddings, reverse = state[f"{name}.weight"], state[f"{head}.weight"]
    both = [embeddings] if gpt.tie_embeddings else [embeddings, reverse.T]
    gpt.token_embedding.set_weights(both)


@pytest.mark.parametrize("family", [llama, gpt_neox, gemma2], ids=lambda family: family.__name__)
def test_logits_and_greedy_text(family):
    import torch

    model, gpt, state = family()
    assert not state.unread
    ids = tools.tokens(3, 11)
    theirs = torch.tensor(ids).long()
    with torch.no_grad():
        logits = model(theirs).logits.numpy()
        new = model.generate(
            theirs,
            attention_mask=torch.ones_like(theirs),  # no id stands for padding
            max_new_tokens=6,
            do_sample=False,
            eos_token_id=None,
        )
    tools.assert_close(gpt.predict(ids, verbose=0), logits)
    assert np.abs(logits).max() > 1
    assert gpt.generate(ids, max_new_tokens=6) == new[:, 11:].tolist()
    assert keras.backend.standardize_dtype(gpt(ids).dtype) == "float32"
