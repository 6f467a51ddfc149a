"""Configurations of decoders as the arguments of `GPT`."""

from keras_tx.layers.alibi_bias import AlibiBias
from keras_tx.layers.feed_forward import FeedForward
from keras_tx.layers.multi_head_self_attention import MultiHeadSelfAttention
from keras_tx.layers.transformer_block import TransformerBlock
from keras_tx.weights.options import Options
from keras_tx.weights.rotary import Rotary


def gpt2(options: Options) -> dict:
    options.require("scale_attn_weights", True)
    options.require("scale_attn_by_inverse_layer_idx", False)
    options.require("add_cross_attention", False)
    block = TransformerBlock(
        options.first("n_head", "num_attention_heads"),
        options.get("n_inner"),
        causal=True,
        activation=options.activation("activation_function", "gelu_new"),
        layer_norm_epsilon=options.get("layer_norm_epsilon", 1e-5),
    )
    return {
        "vocabulary_size": options["vocab_size"],
        "num_layers": options.first("n_layer", "num_hidden_layers"),
        "hidden_dim": options.first("n_embd", "hidden_size"),
        "max_sequence_length": options.first("n_positions", "max_position_embeddings"),
        "position": "learned",
        "block": block,
        "tie_embeddings": options.get("tie_word_embeddings", True),
    }


def bloom(options: Options) -> dict:
    options.require("apply_residual_connection_post_layernorm", False)
    block = TransformerBlock(
        options.first("n_head", "num_attention_heads"),
        causal=True,
        position=AlibiBias(),
        activation="gelu_tanh",
        layer_norm_epsilon=options.get("layer_norm_epsilon", 1e-5),
    )
    return {
        "vocabulary_size": options["vocab_size"],
        "num_layers": options.first("n_layer", "num_hidden_layers"),
        "hidden_dim": options.first("n_embed", "hidden_size"),
        "max_sequence_length": options.first("seq_length", default=2048),
        "block": block,
        "tie_embeddings": options.get("tie_word_embeddings", True),
        "embedding_normalization": True,
    }


def gpt_neox(options: Options) -> dict:
    rotary = Rotary(options, partial=0.25)
    is_parallel = options.get("use_parallel_residual", True)
    head_dim = _head_dim(options)
    block = TransformerBlock(
        attention=MultiHeadSelfAttention(
            options["num_attention_heads"],
            causal=True,
            position=rotary.encoding(head_dim),
            use_bias=options.get("attention_bias", True),
        ),
        feed_forward=FeedForward(
            options["intermediate_size"], activation=options.activation("hidden_act", "gelu")
        ),
        normalization_order="parallel_two_norms" if is_parallel else "pre",
        layer_norm_epsilon=options.get("layer_norm_eps", 1e-5),
    )
    return _rotary_decoder(options, rotary, block)


def llama(options: Options) -> dict:
    return _like_llama(
        options,
        attention={"use_bias": options.get("attention_bias", False)},
        use_bias=options.get("mlp_bias", False),
    )


def mistral(options: Options) -> dict:
    return _like_llama(options, window=options.get("sliding_window", 4096))


def phi3(options: Options) -> dict:
    rotary = Rotary(options, partial=1.0, renamed={"su": "longrope", "yarn": "longrope"})
    return _like_llama(
        options, rotary=rotary, window=options.get("sliding_window"), layer_norm_epsilon=1e-5
    )


def qwen2(options: Options) -> dict:
    attention = {"use_bias": True, "use_output_bias": False}
    return _like_llama(options, attention=attention, **_qwen_windows(options))


def qwen3(options: Options) -> dict:
    attention = {"use_bias": options.get("attention_bias", False), "query_key_norm": True}
    return _like_llama(options, attention=attention, head_dim=128, **_qwen_windows(options))


def gemma2(options: Options) -> dict:
    options.require("use_bidirectional_attention", None, False)
    alternating = ("sliding_attention", "full_attention")
    arguments = _like_llama(
        options,
        attention={
            "use_bias": options.get("attention_bias", False),
            "scale": options.get("query_pre_attn_scalar", 256) ** -0.5,
            "soft_cap": options.get("attn_logit_softcapping", 50.0),
        },
        head_dim=256,
        window=options.get("sliding_window", 4096),
        layer_types=[alternating[i % 2] for i in range(options["num_hidden_layers"])],
        activation=options.activation("hidden_activation", "gelu_pytorch_tanh"),
        normalization_order="sandwich",
    )
    return {
        **arguments,
        "tie_embeddings": options.get("tie_word_embeddings", True),
        "scale_embeddings": True,
        "logit_soft_cap": options.get("final_logit_softcapping", 30.0),
    }


def _like_llama(
    options: Options,
    *,
    attention: dict | None = None,
    rotary: Rotary | None = None,
    head_dim: int | None = None,
    window: int | None = None,
    layer_types: list[str] | None = None,
    activation: str | None = None,
    normalization_order: str = "pre",
    layer_norm_epsilon: float = 1e-6,
    use_bias: bool = False,
) -> dict:
    """RMSNorm, rotary encoding, grouped heads and a gated feed-forward network.

    Args:
        attention: Arguments of the attention.
        rotary: Default: whole heads are turned.
        head_dim: Where the configuration does not say. Default: hidden_size / num_attention_heads.
        window: Of the layers of type "sliding_attention".
        layer_types: Where the configuration does not say. Default: all of that type.
        use_bias: Of the feed-forward network.
    """
    rotary = rotary or Rotary(options)
    head_dim = _head_dim(options, head_dim)
    num_heads = options["num_attention_heads"]
    epsilon = options.get("rms_norm_eps", layer_norm_epsilon)

    def block(window):
        return TransformerBlock(
            attention=MultiHeadSelfAttention(
                num_heads,
                head_dim,
                options.first("num_key_value_heads", default=num_heads),
                causal=True,
                window=window,
                position=rotary.encoding(head_dim),
                layer_norm_epsilon=epsilon,
                **{"use_bias": False, **(attention or {})},
            ),
            feed_forward=FeedForward(
                options["intermediate_size"],
                gated=True,
                activation=activation or options.activation("hidden_act", "silu"),
                use_bias=use_bias,
            ),
            normalization="rms",
            normalization_order=normalization_order,
            layer_norm_epsilon=epsilon,
        )

    windows = _windows(options, window, layer_types)
    same = len(set(windows)) == 1
    blocks = block(windows[0]) if same else [block(window) for window in windows]
    return _rotary_decoder(options, rotary, blocks)


def _rotary_decoder(options, rotary, block) -> dict:
    return {
        "vocabulary_size": options["vocab_size"],
        "num_layers": options["num_hidden_layers"],
        "hidden_dim": options["hidden_size"],
        "max_sequence_length": rotary.max_sequence_length(),
        "block": block,
        "tie_embeddings": options.get("tie_word_embeddings", False),
    }


def _head_dim(options, default=None) -> int:
    default = default or options["hidden_size"] // options["num_attention_heads"]
    return options.first("head_dim", default=default)


def _windows(options, window, layer_types) -> list[int | None]:
    """The window of each layer."""
    num_layers = options["num_hidden_layers"]
    types = options.first("layer_types", default=layer_types)
    if types is None:
        return [window] * num_layers
    known = {"full_attention": None, "sliding_attention": window}
    if len(types) != num_layers or not known.keys() >= set(types):
        raise ValueError(
            f"`layer_types` must be {num_layers} of {', '.join(known)}. Received: {types}"
        )
    if window is None and "sliding_attention" in types:
        raise ValueError("`layer_types` has sliding attention: give its `sliding_window`")
    return [known[kind] for kind in types]


def _qwen_windows(options) -> dict:
    """The first `max_window_layers` see everything, the others a window, if it is used at all."""
    if not options.get("use_sliding_window", False):
        return {}
    num_layers, num_full = options["num_hidden_layers"], options.get("max_window_layers", 28)
    types = ["full_attention", "sliding_attention"]
    return {
        "window": options.get("sliding_window", 4096),
        "layer_types": [types[i >= num_full] for i in range(num_layers)],
    }
