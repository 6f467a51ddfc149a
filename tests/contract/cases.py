"""One table of the public layers, with constructor arguments that are not the defaults.

Every check of this folder runs over `CASES`; `test_coverage.py` fails when a public layer has none.
Sizes are distinct primes where the layer allows it, so that a swapped axis shows.
"""

import dataclasses
import functools
import inspect
import zlib
from collections.abc import Callable

import keras
import numpy as np

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
from keras_tx.layers.rotary_encoding import RotaryEncoding
from keras_tx.layers.rotary_scaling import YarnScaling
from keras_tx.layers.sinusoidal_encoding import SinusoidalEncoding
from keras_tx.layers.transformer_block import TransformerBlock
from tests.contract.running import share_compiled

B, T, S, D, C, F = 3, 5, 7, 11, 13, 17
SEQUENCE = {"x": (B, T, D)}
CROSS = {"x": (B, T, D), "context": (B, S, C)}
RECURRENT = {"query": (B, T, D), "values": (B, S, C)}


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A layer and what the checks need to know of it.

    Args:
        name: Of the test.
        make: Called with `dtype=` and `name=`, gives a new layer.
        shapes: {call argument: shape} of the floating inputs, the first one positional.
        masks: {explicit mask argument: the input it belongs to}.
        length_axes: {input: axis whose length may vary}.
        causal: Whether no output may depend on a later input.
        cached: Whether it takes a cache.
        equivariant: Whether permuting positions permutes the outputs.
        pools: Whether the output has no length.
        has_dropout: Whether training differs from inference.
        tolerance: Of half precision against float32, in units of its epsilon.
    """

    name: str
    make: Callable
    shapes: dict
    masks: dict = dataclasses.field(default_factory=dict)
    length_axes: dict = dataclasses.field(default_factory=dict)
    causal: bool = False
    cached: bool = False
    equivariant: bool = False
    pools: bool = False
    has_dropout: bool = False
    tolerance: float = 4.0

    @property
    def layer_class(self):
        return type(self.template)

    @property
    def has_scores(self):
        return "return_attention_scores" in inspect.signature(self.template.call).parameters

    @functools.cached_property
    def template(self):
        return self.make()

    def inputs(self, seed=0):
        """Its own normal numbers, {argument: float32 array}."""
        random = np.random.default_rng([seed, zlib.crc32(self.name.encode())])
        return {k: random.standard_normal(v).astype("float32") for k, v in self.shapes.items()}

    def ragged(self, inputs):
        """A boolean mask for each explicit mask argument: row 1 short, row 2 with a hole."""
        masks = {}
        for argument, name in self.masks.items():
            mask = np.ones(inputs[name].shape[:2], "bool")
            mask[1, -2:] = False
            mask[2, 1] = False
            masks[argument] = mask
        return masks

    def build_shapes(self):
        return {
            f"{name}_shape": tuple(
                None if axis in (0, self.length_axes.get(name)) else size
                for axis, size in enumerate(shape)
            )
            for name, shape in self.shapes.items()
        }


def sequence_case(name, make, **options):
    return Case(name, make, SEQUENCE, length_axes={"x": 1}, **options)


CASES = [
    sequence_case(
        "feed_forward",
        lambda **k: FeedForward(F, activation="gelu_tanh", dropout=0.3, **k),
        causal=True,
        equivariant=True,
        has_dropout=True,
    ),
    sequence_case(
        "feed_forward_gated",
        lambda **k: FeedForward(gated=True, use_bias=False, kernel_initializer="he_normal", **k),
        causal=True,
        equivariant=True,
    ),
    sequence_case(
        "learned",
        lambda **k: LearnedEncoding(19, embeddings_initializer="he_normal", **k),
        causal=True,
    ),
    sequence_case("sinusoidal_add", lambda **k: SinusoidalEncoding(**k), causal=True),
    sequence_case(
        "sinusoidal_concat",
        lambda **k: SinusoidalEncoding("concat", encoding_dim=7, max_wavelength=100.0, **k),
        causal=True,
    ),
    Case(
        "rotary",
        lambda **k: RotaryEncoding(
            100.0, scaling=YarnScaling(4.0, 16), rotary_dim=10, interleaved=True, **k
        ),
        {"x": (B, 2, T, 14)},
        length_axes={"x": 2},
    ),
    Case(
        "axial_rotary",
        lambda **k: AxialRotaryEncoding(
            (3, 5), max_wavelength=10.0, num_prefix_tokens=2, interleaved=True, **k
        ),
        {"x": (B, 2, 17, 12)},
    ),
    sequence_case(
        "moe",
        lambda **k: MoEFFN(
            5,
            top_k=3,
            intermediate_dim=F,
            activation="gelu_tanh",
            gated=True,
            balance_loss_weight=0.3,
            use_bias=True,
            kernel_initializer="glorot_normal",
            **k,
        ),
        masks={"padding_mask": "x"},
        causal=True,
        equivariant=True,
    ),
    sequence_case(
        "self_attention",
        lambda **k: MultiHeadSelfAttention(3, 7, dropout=0.3, **k),
        masks={"padding_mask": "x"},
        equivariant=True,
        has_dropout=True,
    ),
    sequence_case(
        "self_attention_causal",
        lambda **k: MultiHeadSelfAttention(
            6,
            head_dim=2,
            num_key_value_heads=3,
            causal=True,
            window=3,
            num_global_tokens=2,
            position=RotaryEncoding(100.0, name="position"),
            query_key_norm=True,
            scale=0.4,
            soft_cap=5.0,
            sinks=True,
            dropout=0.2,
            layer_norm_epsilon=1e-3,
            use_bias=False,
            use_output_bias=True,
            kernel_initializer="he_normal",
            **k,
        ),
        masks={"padding_mask": "x"},
        causal=True,
        cached=True,
        has_dropout=True,
        tolerance=8.0,
    ),
    sequence_case(
        "self_attention_tiled",
        lambda **k: MultiHeadSelfAttention(
            2, 3, causal=True, position=AlibiBias(name="position"), implementation="tiled", **k
        ),
        masks={"padding_mask": "x"},
        causal=True,
        cached=True,
    ),
    Case(
        "cross_attention",
        lambda **k: MultiHeadCrossAttention(
            6,
            head_dim=2,
            num_key_value_heads=3,
            query_key_norm=True,
            scale=0.4,
            soft_cap=5.0,
            sinks=True,
            implementation="dense",
            dropout=0.3,
            layer_norm_epsilon=1e-3,
            use_bias=False,
            use_output_bias=True,
            kernel_initializer="he_normal",
            **k,
        ),
        CROSS,
        masks={"context_mask": "context"},
        length_axes={"x": 1, "context": 1},
        has_dropout=True,
    ),
    sequence_case(
        "block_pre",
        lambda **k: TransformerBlock(
            6,
            F,
            num_key_value_heads=2,
            head_dim=2,
            causal=True,
            window=3,
            position=RotaryEncoding(100.0),
            gated=True,
            activation="gelu_tanh",
            normalization="rms",
            dropout=0.2,
            layer_norm_epsilon=1e-3,
            use_bias=False,
            kernel_initializer="he_normal",
            **k,
        ),
        masks={"padding_mask": "x"},
        causal=True,
        cached=True,
        has_dropout=True,
        tolerance=8.0,
    ),
    Case(
        "block_post_cross",
        lambda **k: TransformerBlock(
            3, head_dim=5, cross_attention=True, normalization_order="post", dropout=0.3, **k
        ),
        CROSS,
        masks={"padding_mask": "x", "context_mask": "context"},
        length_axes={"x": 1, "context": 1},
        has_dropout=True,
        tolerance=8.0,
    ),
    Case(
        "block_sandwich_cross",
        lambda **k: TransformerBlock(
            3,
            F,
            head_dim=5,
            cross_attention=True,
            normalization=keras.layers.LayerNormalization(epsilon=1e-3, center=False),
            normalization_order="sandwich",
            dropout=0.3,
            stochastic_depth=0.2,
            layer_scale=0.7,
            **k,
        ),
        CROSS,
        masks={"padding_mask": "x", "context_mask": "context"},
        length_axes={"x": 1, "context": 1},
        equivariant=True,
        has_dropout=True,
        tolerance=8.0,
    ),
    Case(
        "block_of_parts",
        lambda **k: TransformerBlock(
            attention=MultiHeadSelfAttention(3, 7, name="own"),
            cross_attention=MultiHeadCrossAttention(2, 3, name="other"),
            feed_forward=MoEFFN(3, 1, F, balance_loss_weight=0.3, name="experts"),
            **k,
        ),
        CROSS,
        masks={"padding_mask": "x", "context_mask": "context"},
        length_axes={"x": 1, "context": 1},
        equivariant=True,
        tolerance=8.0,
    ),
    sequence_case(
        "attention_pooling",
        lambda **k: AttentionPooling(
            11,
            F,
            activation="gelu_tanh",
            layer_norm_epsilon=1e-3,
            use_bias=False,
            kernel_initializer="he_normal",
            **k,
        ),
        masks={"padding_mask": "x"},
        pools=True,
    ),
    Case(
        "patches",
        lambda **k: PatchEmbedding((2, 3), 13, use_bias=False, kernel_initializer="he_normal", **k),
        {"x": (B, 10, 21, 2)},
    ),
    Case(
        "bahdanau",
        lambda **k: BahdanauAttention(17, kernel_initializer="he_normal", **k),
        RECURRENT,
        masks={"mask": "values"},
        length_axes={"query": 1, "values": 1},
    ),
    Case(
        "luong_general",
        lambda **k: LuongAttention(kernel_initializer="he_normal", **k),
        RECURRENT,
        masks={"mask": "values"},
        length_axes={"query": 1, "values": 1},
        tolerance=8.0,
    ),
    Case(
        "luong_concat",
        lambda **k: LuongAttention("concat", units=17, **k),
        RECURRENT,
        masks={"mask": "values"},
        length_axes={"query": 1, "values": 1},
    ),
]


@functools.cache
def built(case):
    """The case's layer, built once for all checks that leave its weights alone.

    Biases and norms begin at constants that hide mistakes: every weight gets noise of its own.
    """
    layer = case.make(name="subject")
    layer.build(**case.build_shapes())
    random = np.random.default_rng(zlib.crc32(case.name.encode()))
    for weight in layer.trainable_weights:
        noise = 0.1 * random.standard_normal(weight.shape)
        weight.assign(keras.ops.convert_to_numpy(weight) + noise.astype("float32"))
    return layer


@functools.cache
def half(case, dtype):
    """The same in mixed precision, for checks that leave its weights alone."""
    return twin(case, dtype=f"mixed_{dtype}")


def twin(case, **options):
    """Another layer of the case with the weights of `built(case)`."""
    layer = case.make(name="subject", **options)
    layer.build(**case.build_shapes())
    copy_weights(built(case), layer)
    if not options:
        share_compiled(layer, built(case))
    return layer


def copy_weights(source, target):
    for old, new in zip(source.trainable_weights, target.trainable_weights, strict=True):
        new.assign(keras.ops.convert_to_numpy(old))


def zeroed(case, inputs, masks):
    """The inputs as `keras.layers.Masking` takes them: zero wherever they are masked."""
    named = {name: masks[argument][..., None] for argument, name in case.masks.items()}
    return {k: np.where(named[k], v, np.float32(0)) if k in named else v for k, v in inputs.items()}
