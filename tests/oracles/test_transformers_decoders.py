"""GPT equals the decoders of transformers with their weights copied, by arguments alone."""

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
    return model, gpt, copy_like_llama(model, gpt)


# Llama's kin: what their configuration has beside Llama's, and their attention beside ours.
KIN = {
    "Mistral": ({"sliding_window": 5}, {"window": 5}),
    "Phi3": ({"pad_token_id": 0, "original_max_position_embeddings": 17}, {}),
    "Qwen2": ({}, {"use_bias": True, "use_output_bias": False}),
    "Qwen3": ({"head_dim": 4}, {"query_key_norm": True, "layer_norm_epsilon": 1e-3}),
}


def kin(name):
    hugging = transformers()
    theirs, ours = KIN[name]
    config = getattr(hugging, f"{name}Config")(
        **SIZES, num_key_value_heads=1, rms_norm_eps=1e-3, **theirs
    )
    model = randomized(getattr(hugging, f"{name}ForCausalLM")(config))
    attention = {"causal": True, "position": layers.RotaryEncoding(), "use_bias": False, **ours}
    block = layers.TransformerBlock(
        attention=layers.MultiHeadSelfAttention(N, 4, 1, **attention),
        feed_forward=layers.FeedForward(F, gated=True, use_bias=False),
        normalization="rms",
        layer_norm_epsilon=1e-3,
    )
    gpt = ktx.GPT(V, LAYERS, D, max_sequence_length=17, block=block, tie_embeddings=False)
    return model, gpt, copy_like_llama(model, gpt)


def copy_like_llama(model, gpt):
    state = State(model)
    for index, block in enumerate(gpt.blocks):
        h = f"model.layers.{index}"
        state.norm(block.attention_norm, f"{h}.input_layernorm")
        state.norm(block.feed_forward_norm, f"{h}.post_attention_layernorm")
        copy_gated(state, block, h)
    state.norm(gpt.output_norm, "model.norm")
    copy_embeddings(state, gpt, "model.embed_tokens", "lm_head")
    return state


def bloom():
    hugging = transformers()
    config = hugging.BloomConfig(
        vocab_size=V, hidden_size=D, n_layer=LAYERS, n_head=N, layer_norm_epsilon=1e-3
    )
    model = randomized(hugging.BloomForCausalLM(config))
    block = layers.TransformerBlock(
        N, causal=True, position=layers.AlibiBias(), activation="gelu_tanh", layer_norm_epsilon=1e-3
    )
    gpt = ktx.GPT(V, LAYERS, D, max_sequence_length=17, block=block, embedding_normalization=True)
    state = State(model)
    # Theirs holds query, key and value of one head side by side.
    order = np.arange(3 * D).reshape(N, 3, D // N).transpose(1, 0, 2).ravel()
    for index, block in enumerate(gpt.blocks):
        h = f"transformer.h.{index}"
        state.norm(block.attention_norm, f"{h}.input_layernorm")
        state.norm(block.feed_forward_norm, f"{h}.post_attention_layernorm")
        query_key_value = block.attention.query_key_value_dense
        state.dense(query_key_value, f"{h}.self_attention.query_key_value", order=order)
        state.dense(block.attention.output_dense, f"{h}.self_attention.dense")
        state.dense(block.feed_forward.inner_dense, f"{h}.mlp.dense_h_to_4h")
        state.dense(block.feed_forward.output_dense, f"{h}.mlp.dense_4h_to_h")
    state.norm(gpt.embedding_norm, "transformer.word_embeddings_layernorm")
    state.norm(gpt.output_norm, "transformer.ln_f")
    copy_embeddings(state, gpt, "transformer.word_embeddings", "lm_head")
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
        query_pre_attn_scalar=9,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=20.0,
        sliding_window=5,
        layer_types=["sliding_attention", "full_attention"],
        rms_norm_eps=1e-3,
        attn_implementation="eager",
    )
    model = randomized(hugging.Gemma2ForCausalLM(config))
    blocks = [
        layers.TransformerBlock(
            attention=layers.MultiHeadSelfAttention(
                N,
                4,
                1,
                causal=True,
                window=window,
                position=layers.RotaryEncoding(),
                scale=9**-0.5,
                soft_cap=2.0,
                use_bias=False,
            ),
            feed_forward=layers.FeedForward(F, gated=True, activation="gelu_tanh", use_bias=False),
            normalization="rms",
            normalization_order="sandwich",
            layer_norm_epsilon=1e-3,
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
    """The attention and the gated feed-forward network, as Llama, or Phi-3, calls them."""
    attention, feed_forward = f"{name}.self_attn", f"{name}.mlp"
    projections, inner = ["qkv_proj"], ["gate_up_proj"]
    if f"{attention}.qkv_proj.weight" not in state.values:
        projections, inner = ["q_proj", "k_proj", "v_proj"], ["gate_proj", "up_proj"]
    state.dense(
        block.attention.query_key_value_dense, *[f"{attention}.{part}" for part in projections]
    )
    if block.attention.query_key_norm:
        state.norm(block.attention.query_norm, f"{attention}.q_norm")
        state.norm(block.attention.key_norm, f"{attention}.k_norm")
    state.dense(block.attention.output_dense, f"{attention}.o_proj")
    state.dense(block.feed_forward.inner_dense, *[f"{feed_forward}.{part}" for part in inner])
    state.dense(block.feed_forward.output_dense, f"{feed_forward}.down_proj")


def copy_embeddings(state, gpt, name, head):
    embeddings, reverse = state[f"{name}.weight"], state[f"{head}.weight"]
    both = [embeddings] if gpt.tie_embeddings else [embeddings, reverse.T]
    gpt.token_embedding.set_weights(both)


FAMILIES = {"Llama": llama, "GPTNeoX": gpt_neox, "Gemma2": gemma2, "Bloom": bloom}


IDS = tools.tokens(3, 11)


def check_logits(model, gpt, state):
    import torch

    assert not state.unread
    with torch.no_grad():
        logits = model(torch.tensor(IDS).long()).logits.numpy()
    tools.assert_close(gpt.predict(IDS, verbose=0), logits)
    assert np.abs(logits).max() > 1


@pytest.mark.parametrize("name", KIN)
def test_logits_of_the_kin_of_llama(name):
    check_logits(*kin(name))


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_and_greedy_text(name):
    import torch

    model, gpt, state = FAMILIES[name]()
    check_logits(model, gpt, state)
    ids = torch.tensor(IDS).long()
    everything = torch.ones_like(ids)  # no id stands for padding
    with torch.no_grad():
        new = model.generate(
            ids, attention_mask=everything, max_new_tokens=6, do_sample=False, eos_token_id=None
        )
    assert gpt.generate(IDS, max_new_tokens=6) == new[:, 11:].tolist()
