"""The table variant x cache: what a cached step gives, beside the whole sequence at once.

    KERAS_BACKEND=jax python -m tests.models.cache_table [variant ...]

A ragged batch of prompts: empty, of 1, 7 and 64 tokens, and as long as leaves room. They are read
in chunks, and rings are shorter than they are, so that every ring turns many times.
"""

import functools
import sys

import keras
import numpy as np
from keras import ops

import keras_tx as ktx
from keras_tx import kernels, layers
from tests.models import tools

NEW = 6
LENGTH = 90
LENGTHS = np.array([0, 1, 7, 64, LENGTH - NEW], "int32")
CHUNK = 16
TOLERANCE = 1e-5


def attention(num_heads=2, head_dim=4, **arguments):
    return layers.MultiHeadSelfAttention(num_heads, head_dim, causal=True, **arguments)


def block(of_block=None, **of_attention):
    return layers.TransformerBlock(attention=attention(**of_attention), **(of_block or {}))


def rotary(**arguments):
    return block(position=layers.RotaryEncoding(**arguments))


def t5():
    return layers.RelativePositionBias(8, 20, bidirectional=False)


LONG = {"short_factors": [1.0, 1.3], "long_factors": [1.5, 4.0]}
# Of each, what a GPT takes besides its sizes.
VARIANTS = {
    "learned": lambda: {"block": block(), "position": "learned"},
    "sinusoidal": lambda: {"block": block(), "position": "sinusoidal"},
    "grouped queries": lambda: {"block": block(num_heads=4, num_key_value_heads=2)},
    "one key head": lambda: {"block": block(num_heads=3, num_key_value_heads=1)},
    "rotary": lambda: {"block": rotary(interleaved=True)},
    "rotary, partial": lambda: {"block": rotary(rotary_dim=2)},
    "rotary, linear": lambda: {"block": rotary(scaling=layers.LinearScaling(4.0))},
    "rotary, dynamic": lambda: {"block": rotary(scaling=layers.DynamicScaling(4.0, 40))},
    "rotary, yarn": lambda: {"block": rotary(scaling=layers.YarnScaling(4.0, 40))},
    "rotary, longrope": lambda: {"block": rotary(scaling=layers.LongRopeScaling(4.0, 40, **LONG))},
    "rotary, llama 3": lambda: {"block": rotary(scaling=layers.Llama3Scaling(4.0, 40))},
    "ALiBi": lambda: {"block": block(position=layers.AlibiBias())},
    "T5 bias": lambda: {"block": block(position=t5())},
    "window": lambda: {
        "block": block(
            num_heads=4, num_key_value_heads=2, window=5, position=layers.RotaryEncoding()
        )
    },
    "window, global": lambda: {
        "block": block(window=5, num_global_tokens=3, position=layers.RotaryEncoding())
    },
    "window, ALiBi": lambda: {"block": block(window=5, position=layers.AlibiBias())},
    "window, global, T5": lambda: {"block": block(window=5, num_global_tokens=3, position=t5())},
    "window, wide": lambda: {"block": block(window=2 * LENGTH, num_global_tokens=3)},
    "window, padding id": lambda: {
        "block": [block(window=5, num_global_tokens=2), block(position=layers.RotaryEncoding())],
        "pad_token_id": 3,
    },
    "alternating windows": lambda: {
        "block": [block(window=5), block(position=layers.RotaryEncoding(), window=20)],
    },
    "experts": lambda: {
        "block": block(
            {"feed_forward": layers.MoEFFN(3, top_k=2, intermediate_dim=7)},
            position=layers.RotaryEncoding(),
        )
    },
    "norms, sinks, cap": lambda: {
        "block": block(
            window=5, query_key_norm=True, sinks=True, soft_cap=2.0, position=layers.AlibiBias()
        )
    },
    "sandwich": lambda: {
        "block": block({"normalization_order": "sandwich", "normalization": "rms"}),
        "position": "learned",
    },
    "parallel": lambda: {"block": block({"normalization_order": "parallel"})},
    "parallel, two norms": lambda: {"block": block({"normalization_order": "parallel_two_norms"})},
}


@functools.cache
def make(name):
    """The variant's model; an empty prompt begins with token 1."""
    sizes = {"num_layers": 2, "hidden_dim": 8, "max_sequence_length": LENGTH, "start_token_id": 1}
    return tools.randomize(ktx.GPT(tools.VOCABULARY, **sizes, **VARIANTS[name]()))


def texts():
    """Token ids (5, LENGTH) that begin with the prompts; the empty one is the start token."""
    token_ids = tools.tokens(len(LENGTHS), LENGTH)
    token_ids[0, 0] = 1
    return token_ids


@functools.cache
def uncached(model):
    """Logits (5, NEW + 1, V) at the prompts' ends and behind, from the whole texts at once."""
    token_ids, real = texts(), np.maximum(LENGTHS, 1)
    inputs = {"token_ids": token_ids, "lengths": np.minimum(real + NEW, LENGTH)}
    logits = tools.forward(model)(inputs)
    return np.stack([row[n - 1 : n + NEW] for row, n in zip(logits, real, strict=True)])


def prompts_and_following():
    """What `start` takes, and the NEW tokens (5, NEW) that follow."""
    token_ids = texts()
    prompts = token_ids[:, : LENGTHS.max()].copy()
    prompts[np.arange(LENGTHS.max()) >= LENGTHS[:, None]] = 4  # padding is no particular token
    real = np.maximum(LENGTHS, 1)
    following = [row[n : n + NEW] for row, n in zip(token_ids, real, strict=True)]
    return {"token_ids": prompts, "lengths": LENGTHS}, np.stack(following)


def stepwise(model, logits, state, following):
    """Logits (B, N + 1, V): those of `start`, and of a step for each of the tokens (B, N)."""
    rows, count = following.shape
    kept = ops.zeros((rows, count + 1, tools.VOCABULARY)) + logits[:, None]
    places = ops.arange(count + 1)[None, :, None]

    def step(index, kept, state):
        logits, state = model.step(ops.take(following, index, axis=1), state)
        return index + 1, ops.where(places == index + 1, logits[:, None], kept), state

    first = (ops.cast(0, "int32"), kept, state)
    return ops.while_loop(lambda index, *_: index < count, step, first)[1]


def cached(model, chunk=CHUNK):
    """The same logits from `start` and NEW steps, and the numbers of slots of the caches."""
    model.prefill_chunk = chunk
    slots = []

    def run(inputs, following):
        logits, state = model.start(inputs, NEW)
        slots[:] = [key.shape[2] for key, _ in state["caches"]]
        return stepwise(model, logits, state, following)

    return call(model, run, *prompts_and_following()), slots


def taken_back(model, chunk=CHUNK):
    """Logits (5, 7, V) where other tokens were read, and taken back; and their places (5, 7)."""
    model.prefill_chunk = chunk
    inputs, following = prompts_and_following()
    count = np.array([0, 1, 2, 3, 1], "int32")  # of the second half
    places = np.arange(3, 6) - count[:, None]
    again = np.take_along_axis(following, places, axis=1)

    def run(inputs, right, again, count):
        first, state = model.start(inputs, NEW, slack=3)
        _, state = model.extend((right + 1) % tools.VOCABULARY, state)
        state = model.rewind(state, ops.full((len(LENGTHS),), 3))
        then, state = model.extend(right, state)
        last, state = model.extend(again, model.rewind(state, count))
        return ops.concatenate([first[:, None], then, last], axis=1)

    logits = call(model, run, inputs, following[:, :3], again, count)
    return logits, np.concatenate([np.tile(np.arange(4), (len(LENGTHS), 1)), places + 1], axis=1)


def call(model, function, *arguments):
    """A function of tensors, compiled, of numpy arrays."""
    arguments = keras.tree.map_structure(ops.convert_to_tensor, arguments)
    return ops.convert_to_numpy(kernels.compiled(function, model.variables)(*arguments))


def error(model, actual, places=None):
    """The largest difference from `uncached`, over its max(1, max|logit|), at real tokens."""
    if places is None:
        places = np.arange(NEW + 1)[None, :] + np.zeros((len(LENGTHS), 1), int)
    expected = np.take_along_axis(uncached(model), places[:, :, None], axis=1).astype("float64")
    ends = np.maximum(LENGTHS, 1)[:, None] - 1
    read = np.take_along_axis(texts(), ends + places, axis=1)
    # What padding itself sees is nobody's business.
    is_real = read >= 0 if model.pad_token_id is None else read != model.pad_token_id
    return np.abs(actual - expected)[is_real].max() / max(1.0, np.abs(expected).max())


def row(name, chunk=CHUNK):
    """(largest relative difference, numbers of slots) of a variant."""
    model = make(name)
    logits, slots = cached(model, chunk)
    return error(model, logits), slots


def show(name, slots, difference):
    mark = "" if difference <= TOLERANCE else "  (!)"
    print(f"{name:24}{slots:>10}{difference:22.1e}{mark}", flush=True)


if __name__ == "__main__":
    from tests.models import paired_cache_table as paired

    print(f"{'variant':24}{'slots':>10}{'cached - uncached':>22}")
    for variant in sys.argv[1:] or [*VARIANTS, *paired.VARIANTS]:
        if variant in paired.VARIANTS:
            show(variant, "", paired.row(variant))
        else:
            found, sizes = row(variant)
            show(variant, "/".join(map(str, sizes)), found)
