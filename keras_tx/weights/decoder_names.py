"""What the decoders of transformers call the tensors of a `GPT`."""

from typing import NamedTuple

import numpy as np

from keras_tx.models.gpt import GPT
from keras_tx.weights.state import State

QUERY_KEY_VALUE = "attention.query_key_value_dense"


class DecoderNames(NamedTuple):
    """A family's names, as `State.parts` takes them.

    root: What all names but the head's begin with.
    model: Parts of the model.
    blocks: What the names of a block's parts begin with, its number follows.
    block: Parts of a block.
    inputs_first, gain_offset: As for `State`.
    logits: What the matrix of the logits is called, or was in files of older releases.
    heads_together: Whether query, key and value of one head stand side by side.
    ignored: Endings of names that hold no weights.
    """

    root: str
    model: dict
    blocks: str
    block: dict
    inputs_first: bool = False
    logits: tuple[str, ...] = ("lm_head.weight",)
    gain_offset: float = 0.0
    heads_together: bool = False
    ignored: tuple[str, ...] = (".rotary_emb.inv_freq",)


GPT2 = DecoderNames(
    root="transformer.",
    model={
        "token_embedding.embeddings": "wte.weight",
        "position_encoding.embeddings": "wpe.weight",
        "output_norm": "ln_f",
    },
    blocks="h.",
    block={
        "attention_norm": "ln_1",
        QUERY_KEY_VALUE: "attn.c_attn",
        "attention.output_dense": "attn.c_proj",
        "feed_forward_norm": "ln_2",
        "feed_forward.inner_dense": "mlp.c_fc",
        "feed_forward.output_dense": "mlp.c_proj",
    },
    inputs_first=True,
    ignored=(".attn.bias", ".attn.masked_bias"),
)

GPT_NEOX = DecoderNames(
    root="gpt_neox.",
    model={"token_embedding.embeddings": "embed_in.weight", "output_norm": "final_layer_norm"},
    blocks="layers.",
    block={
        "attention_norm": "input_layernorm",
        QUERY_KEY_VALUE: "attention.query_key_value",
        "attention.output_dense": "attention.dense",
        "feed_forward_norm": "post_attention_layernorm",
        "feed_forward.inner_dense": "mlp.dense_h_to_4h",
        "feed_forward.output_dense": "mlp.dense_4h_to_h",
    },
    logits=("lm_head.weight", "embed_out.weight"),
    heads_together=True,
    ignored=(".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"),
)

BLOOM = DecoderNames(
    root="transformer.",
    model={
        "token_embedding.embeddings": "word_embeddings.weight",
        "embedding_norm": "word_embeddings_layernorm",
        "output_norm": "ln_f",
    },
    blocks="h.",
    block={
        **GPT_NEOX.block,
        QUERY_KEY_VALUE: "self_attention.query_key_value",
        "attention.output_dense": "self_attention.dense",
    },
    heads_together=True,
)

LLAMA = DecoderNames(
    root="model.",
    model={"token_embedding.embeddings": "embed_tokens.weight", "output_norm": "norm"},
    blocks="layers.",
    block={
        "attention_norm": "input_layernorm",
        QUERY_KEY_VALUE: ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "attention.output_dense": "self_attn.o_proj",
        "feed_forward_norm": "post_attention_layernorm",
        "feed_forward.inner_dense": ("mlp.gate_proj", "mlp.up_proj"),
        "feed_forward.output_dense": "mlp.down_proj",
    },
)

PHI3 = LLAMA._replace(
    block={
        **LLAMA.block,
        QUERY_KEY_VALUE: "self_attn.qkv_proj",
        "feed_forward.inner_dense": "mlp.gate_up_proj",
    }
)

QWEN3 = LLAMA._replace(
    block={
        **LLAMA.block,
        "attention.query_norm": "self_attn.q_norm",
        "attention.key_norm": "self_attn.k_norm",
    }
)

GEMMA2 = LLAMA._replace(
    block={
        **LLAMA.block,
        "attention_output_norm": "post_attention_layernorm",
        "feed_forward_norm": "pre_feedforward_layernorm",
        "feed_forward_output_norm": "post_feedforward_layernorm",
    },
    gain_offset=1.0,
)


def assign_decoder(names: DecoderNames, gpt: GPT, tensors: dict):
    state = State(tensors, inputs_first=names.inputs_first, gain_offset=names.gain_offset)
    root = state.root(names.root)
    state.parts(gpt, names.model, root)
    table = {path: name for path, name in names.block.items() if path != QUERY_KEY_VALUE}
    for index, block in enumerate(gpt.blocks):
        prefix = f"{root}{names.blocks}{index}."
        state.parts(block, table, prefix)
        _query_key_value(state, block.attention, names, prefix)
    head = next((name for name in names.logits if name in state), names.logits[0])
    if gpt.tie_embeddings:
        state.same(head, f"{root}{names.model['token_embedding.embeddings']}")
    else:
        reverse = gpt.token_embedding.reverse_embeddings  # (D, V)
        state.plan(reverse, [head], [reverse.shape[::-1]], np.transpose)
    state.finish(gpt, names.ignored)


def _query_key_value(state, attention, names, prefix):
    """The fused projection, from one product or three, of query heads and fewer key-value heads."""
    layer, theirs = attention.query_key_value_dense, names.block[QUERY_KEY_VALUE]
    num_heads = attention.num_heads
    num_key_value_heads = attention.num_key_value_heads or num_heads
    units = layer.kernel.shape[1]
    head_dim = units // (num_heads + 2 * num_key_value_heads)
    order = None
    if names.heads_together:
        order = np.arange(units).reshape(num_heads, 3, head_dim).transpose(1, 0, 2).ravel()
    if isinstance(theirs, str):
        state.dense(layer, [f"{prefix}{theirs}"], order=order)
    else:
        heads = (num_heads, num_key_value_heads, num_key_value_heads)
        widths = [count * head_dim for count in heads]
        state.dense(layer, [f"{prefix}{name}" for name in theirs], widths)
