"""Attention and transformer layers for every Keras backend.

Letters used in shapes: B batch, T query length, S key length, N query heads, K key-value heads,
H head_dim, D hidden_dim, F intermediate_dim, E experts, V vocabulary, P patches. Masks are
boolean, True = take part.
"""

from keras_tx.layers.alibi_bias import AlibiBias
from keras_tx.layers.attention_pooling import AttentionPooling
from keras_tx.layers.axial_rotary_encoding import AxialRotaryEncoding
from keras_tx.layers.bahdanau_attention import BahdanauAttention
from keras_tx.layers.feed_forward import FeedForward
from keras_tx.layers.learned_encoding import LearnedEncoding
from keras_tx.layers.luong_attention import LuongAttention
from keras_tx.layers.moe_ffn import MoEFFN
from keras_tx.layers.multi_head_cross_attention import MultiHeadCrossAttention
from keras_tx.layers.multi_head_self_attention import MultiHeadSelfAttention
from keras_tx.layers.patch_embedding import PatchEmbedding
from keras_tx.layers.relative_position_bias import RelativePositionBias
from keras_tx.layers.rotary_encoding import RotaryEncoding
from keras_tx.layers.rotary_scaling import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    YarnScaling,
)
from keras_tx.layers.sinusoidal_encoding import SinusoidalEncoding
from keras_tx.layers.transformer_block import TransformerBlock

__all__ = [
    "AlibiBias",
    "AttentionPooling",
    "AxialRotaryEncoding",
    "BahdanauAttention",
    "DynamicScaling",
    "FeedForward",
    "LearnedEncoding",
    "LinearScaling",
    "Llama3Scaling",
    "LongRopeScaling",
    "LuongAttention",
    "MoEFFN",
    "MultiHeadCrossAttention",
    "MultiHeadSelfAttention",
    "PatchEmbedding",
    "RelativePositionBias",
    "RotaryEncoding",
    "SinusoidalEncoding",
    "TransformerBlock",
    "YarnScaling",
]
