"""How far a path of attention is from the float64 oracle, and a table of it.

KERAS_BACKEND=jax python -m tests.ops.attention_accuracy
"""

import dataclasses

import keras
import numpy as np
from keras import ops

from keras_tx import kernels
from keras_tx.ops.attention import Path, attention
from keras_tx.ops.attention_mask import AttentionMask
from keras_tx.ops.hashed_dropout import keep_mask
from keras_tx.ops.scoring import Scoring
from keras_tx.ops.tiled_attention import tiled_attention
from tests.ops import attention_oracle
from tests.ops.differentiation import pull_back

# batch, query heads, key heads, queries, keys, features, features of a value
SHAPES = [
    (2, 6, 2, 13, 13, 5, 7),
    (1, 3, 3, 5, 11, 7, 3),
    (3, 2, 1, 11, 7, 3, 5),
    (2, 3, 3, 1, 1, 2, 2),
]
TILE = 4
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-3}
PATHS = ["dense", "tiled"] + ["fused"] * kernels.HAS_FUSED_ATTENTION


EXPLICIT = ("shared", "by head", "by key")


def draw_mask(
    random, shape, parts=(), causal=False, window=None, num_global_tokens=0, offset=False
):
    batch, heads, _, queries, keys, _, _ = shape
    segments = [np.sort(random.integers(0, 3, (batch, n))).astype("int32") for n in (queries, keys)]
    return AttentionMask(
        causal=causal,
        window=window,
        num_global_tokens=num_global_tokens if window else 0,
        offset=random.integers(0, max(1, keys - queries + 1), batch).astype("int32")
        if offset
        else None,
        padding=random.random((batch, keys)) < 0.6 if "padding" in parts else None,
        query_segments=segments[0] if "segments" in parts else None,
        key_segments=segments[1] if "segments" in parts else None,
        explicit={
            "shared": random.random((batch, 1, queries, keys)) < 0.6,
            "by head": random.random((batch, heads, queries, keys)) < 0.6,
            "by key": random.random((1, heads, 1, keys)) < 0.6,
        }.get(next((p for p in parts if p in EXPLICIT), None)),
    )


def draw_inputs(random, shape, extras):
    batch, heads, key_heads, queries, keys, dim, value_dim = shape
    inputs = {
        "query": random.standard_normal((batch, heads, queries, dim)),
        "key": random.standard_normal((batch, key_heads, keys, dim)),
        "value": random.standard_normal((batch, key_heads, keys, value_dim)),
        "distance_bias": random.standard_normal((heads, 2 * max(queries, keys) - 1)),
        "bias": random.standard_normal((batch, heads, queries, keys)),
        "sinks": random.standard_normal((heads,)),
    }
    return {name: x for name, x in inputs.items() if name in {"query", "key", "value", *extras}}


def run(path, mask, scoring):
    """A function of the inputs by name."""
    mask = dataclasses.replace(
        mask,
        **{
            name: ops.convert_to_tensor(getattr(mask, name))
            for name in ("offset", "padding", "query_segments", "key_segments", "explicit")
            if getattr(mask, name) is not None
        },
    )

    def function(query, key, value, **extras):
        asked = dataclasses.replace(scoring, **extras)
        if path == "tiled":
            return tiled_attention(query, key, value, mask, asked, tile=TILE)
        return attention(query, key, value, mask, asked, Path(path, "asked for"))

    return function


def differences(
    path, shape, mask, extras=(), dtype="float32", soft_cap=None, dropout=0.0, seed=0
) -> dict[str, float]:
    """Of the output and of each gradient: the largest difference, the tolerance being 1."""
    random = np.random.default_rng(seed)
    inputs = {
        name: np.asarray(ops.convert_to_numpy(ops.cast(ops.cast(x, dtype), "float32")))
        for name, x in draw_inputs(random, shape, extras).items()
    }
    upstream = random.standard_normal((*inputs["query"].shape[:3], shape[-1])).astype("float32")
    scoring, kept = Scoring(soft_cap=soft_cap, scale=0.4), None
    if dropout:
        dropout_seed = ops.convert_to_tensor(seed + 5, "int32")
        scoring = dataclasses.replace(scoring, dropout=dropout, seed=dropout_seed)
        kept = kept_weights(dropout_seed, dropout, shape)
    reference, _, gradients = attention_oracle.attention(
        inputs, upstream, mask, scale=0.4, soft_cap=soft_cap, kept=kept, dropout=dropout
    )
    halved = ("query", "key", "value")
    given = {name: ops.cast(x, dtype) if name in halved else x for name, x in inputs.items()}
    output, got = pull_back(run(path, mask, scoring), given, ops.cast(upstream, dtype))
    pairs = {"output": (output, reference)}
    pairs |= {name: (got[name], gradient) for name, gradient in gradients.items()}
    return {
        name: np.abs(ours - exact).max() / (TOLERANCE[dtype] * max(1.0, np.abs(exact).max()))
        for name, (ours, exact) in pairs.items()
    }


def kept_weights(seed, dropout, shape):
    """Boolean (B, N, T, S), by the same hash as every path."""
    batch, heads, _, queries, keys = shape[:5]
    group = np.arange(batch * heads, dtype="int32").reshape(batch, heads, 1, 1)
    places = ops.arange(queries, dtype="int32")[:, None], ops.arange(keys, dtype="int32")
    return ops.convert_to_numpy(keep_mask(seed, dropout, ops.convert_to_tensor(group), *places))


# What the table asks for: of `draw_mask`, and beside it.
MASKS = {
    "none": {},
    "causal": {"causal": True},
    "window": {"window": 3},
    "causal window": {"causal": True, "window": 3},
    "window, global tokens": {"window": 3, "num_global_tokens": 2},
    "causal window, global tokens": {"causal": True, "window": 3, "num_global_tokens": 2},
    "padding": {"parts": ["padding"]},
    "causal, padding": {"causal": True, "parts": ["padding"]},
    "segments": {"parts": ["segments"]},
    "causal, segments, padding": {"causal": True, "parts": ["segments", "padding"]},
    "explicit": {"parts": ["shared"]},
    "explicit, by head": {"parts": ["by head"]},
    "explicit, for all queries": {"parts": ["by key"]},
    "causal, offset of each row": {"causal": True, "offset": True},
    "all at once": {"causal": True, "window": 5, "parts": ["padding", "segments", "by head"]},
}
REQUESTS = {
    **{name: {"mask": mask} for name, mask in MASKS.items()},
    "causal + bias by distance": {"mask": MASKS["causal"], "extras": ["distance_bias"]},
    "padding + bias of pairs": {"mask": MASKS["padding"], "extras": ["bias"]},
    "causal + sinks": {"mask": MASKS["causal"], "extras": ["sinks"]},
    "causal + soft cap": {"mask": MASKS["causal"], "soft_cap": 1.5},
    "causal + dropout": {"mask": MASKS["causal"], "dropout": 0.3},
}
HONOURED = {
    "dense": set(REQUESTS),
    "tiled": set(REQUESTS) - {"padding + bias of pairs"},
    "fused": set(REQUESTS) - {"causal + sinks", "causal + soft cap", "causal + dropout"},
}


def largest_difference(path, request, dtype) -> float:
    """Of the output and all gradients, for a request by name."""
    arguments = dict(REQUESTS[request])
    mask = draw_mask(np.random.default_rng(1), SHAPES[0], **arguments.pop("mask"))
    return max(differences(path, SHAPES[0], mask, dtype=dtype, **arguments).values())


def main():
    print(f"{keras.backend.backend()}: largest difference from float64, the tolerance being 1")
    print("(float32: 1e-5, bfloat16: 2e-2, times the largest value), output and all gradients\n")
    columns = [(path, dtype) for path in PATHS for dtype in ("float32", "bfloat16")]
    print("| Request | " + " | ".join(f"{path}, {dtype}" for path, dtype in columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    worst = 0.0
    for name in REQUESTS:
        cells = []
        for path, dtype in columns:
            if name not in HONOURED[path]:
                cells.append("")
                continue
            found = largest_difference(path, name, dtype)
            worst = max(worst, found)
            cells.append(f"{found:.2f}")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    raise SystemExit(int(worst > 1))


if __name__ == "__main__":
    main()
