"""Exact attention, by the path that suits the request.

What may be seen is described by an `AttentionMask`, how scores come about by a `Scoring`; neither
is a (T, S) matrix, so each path reads as much of them as it needs:

    attention(query, key, value, mask, scoring)
      choose_path                  from sizes, mask and scoring alone: a `Path` and the reason
      |- "dense"   dense_attention    dense_mask(mask): the whole boolean matrix
      |- "tiled"   tiled_attention    classify(mask): tiles with nothing to see are never visited,
      |                               tiles with nothing to hide need no mask, tile_mask(mask) for
      |                               the others; the backward pass makes the weights again
      `- "fused"   kernels.fused_attention    the backend's own kernel: a flag or a mask

In order:
1. Weights are wanted: dense. Or there are no queries or keys at all.
2. The backend has a kernel of its own, and it honours the request: fused. Soft caps, sinks and
   dropout are not honoured; neither is a mask or a bias that would need a large matrix.
3. There is a bias for every pair, or each row has distances of its own: dense. Tiles cannot be
   made of that.
4. The scores of one head are many (`kernels.MANY_SCORES`), for more than a few queries: tiled.
   So they may be where TensorFlow does not know a length when it traces: tiled, too.
5. Otherwise dense: on few scores a loop costs more than it saves.
"""

import dataclasses
import math

from keras import ops

from keras_tx import kernels
from keras_tx.ops.attention_mask import ALL_VISIBLE, AttentionMask, dense_mask
from keras_tx.ops.dense_attention import FEW_QUERIES, dense_attention, pair_bias
from keras_tx.ops.scoring import PLAIN, Scoring
from keras_tx.ops.tiled_attention import tiled_attention

PATHS = ("auto", "dense", "tiled", "fused")
LARGE_MATRIX = 1024 * 1024  # of a mask that only the fused path needs


@dataclasses.dataclass(frozen=True)
class Path:
    """What computes an attention, and why."""

    name: str
    reason: str

    def __str__(self):
        return f"{self.name}: {self.reason}"


def attention(
    query,
    key,
    value,
    mask: AttentionMask = ALL_VISIBLE,
    scoring: Scoring = PLAIN,
    path: Path | None = None,
):
    """softmax(scores) value for query heads in groups that share a key head.

    Args:
        query: (B, N, T, H).
        key: (B, K, S, H), K divides N; query head n reads key head n // (N / K).
        value: (B, K, S, H').
        mask, scoring: What is visible, and how scores come about.
        path: What `choose_path` gave. Default: its choice.

    Returns:
        (B, N, T, H') in the dtype of `value`; a query that sees nothing gives 0.
    """
    path = path or choose_path(query.shape, key.shape, mask, scoring)
    if path.name == "fused":
        return _fused(query, key, value, mask, scoring)
    if path.name == "tiled":
        return tiled_attention(query, key, value, mask, scoring, _tile(mask))
    return dense_attention(query, key, value, mask, scoring)[0]


def choose_path(
    query_shape,
    key_shape,
    mask: AttentionMask = ALL_VISIBLE,
    scoring: Scoring = PLAIN,
    wanted: str = "auto",
    needs_weights: bool = False,
) -> Path:
    """Which path computes an attention of these shapes (B, N, T, H) and (B, K, S, H).

    Args:
        query_shape, key_shape: None where unknown.
        mask, scoring: Of the attention.
        wanted: One of "auto", "dense", "tiled" and "fused".
        needs_weights: Whether the weights are to be returned: always dense.

    Raises:
        ValueError: If the path that is wanted cannot honour the request.
    """
    if wanted not in PATHS:
        raise ValueError(f"`implementation` must be one of {PATHS}. Received: {wanted!r}")
    if needs_weights:
        return Path("dense", "the weights are wanted")
    if 0 in (query_shape[0], query_shape[2], key_shape[2]):
        return Path("dense", "there is nothing to see")
    refusals = {
        "dense": None,
        "tiled": _tiled_refuses(mask, scoring),
        "fused": _fused_refuses(query_shape, key_shape, mask, scoring),
    }
    if wanted != "auto":
        if refusals[wanted]:
            raise ValueError(
                f'implementation="{wanted}" cannot be used here, as {refusals[wanted]}: use "auto".'
            )
        return Path(wanted, "asked for")
    if refusals["fused"] is None:
        return Path("fused", "the backend's own kernel honours the request")
    if refusals["tiled"]:
        return Path("dense", refusals["tiled"])
    queries, keys = query_shape[2], key_shape[2]
    if isinstance(queries, int) and queries <= FEW_QUERIES:
        return Path("dense", f"few queries ({queries})")
    if queries is None or keys is None:
        return Path("tiled", "a length is not known yet; a short one is one tile")
    if not (isinstance(queries, int) and isinstance(keys, int)):
        return Path("dense", "lengths are symbols, of which only shapes are wanted")
    if queries * keys >= kernels.MANY_SCORES:
        return Path("tiled", f"{queries} x {keys} scores a head")
    return Path("dense", f"few scores ({queries} x {keys} a head)")


def _tiled_refuses(mask, scoring) -> str | None:
    if scoring.bias is not None:
        return "there is a bias for every pair"
    if scoring.distance_bias is not None and mask.offset is not None:
        return "each row has distances of its own"
    return None


def _fused_refuses(query_shape, key_shape, mask, scoring) -> str | None:
    if not kernels.HAS_FUSED_ATTENTION:
        return "this backend has no kernel of its own here"
    for name in ("soft_cap", "sinks"):
        if getattr(scoring, name) is not None:
            return f"the kernel knows no {name}"
    if scoring.dropout:
        return "the kernel drops other weights than the other paths"
    if _is_flag(query_shape, key_shape, mask, scoring):
        return None
    size = math.prod(query_shape[2:3] + key_shape[2:3])
    if size >= LARGE_MATRIX:
        return f"the mask would be a matrix of {query_shape[2]} x {key_shape[2]}"
    return None


def _is_flag(query_shape, key_shape, mask, scoring) -> bool:
    """Whether the kernel needs no matrix: nothing hidden, causal alone, or padding alone."""
    if scoring.bias is not None or scoring.distance_bias is not None:
        return False
    if mask.window is not None or mask.query_segments is not None or mask.explicit is not None:
        return False
    if mask.causal:
        square = query_shape[2] == key_shape[2] and mask.offset is None
        return square and mask.padding is None
    return True


def _fused(query, key, value, mask, scoring):
    num_queries, num_keys = ops.shape(query)[2], ops.shape(key)[2]
    arguments = {"scale": scoring.scale_for(query.shape[-1])}
    if mask.causal and _is_flag(query.shape, key.shape, mask, scoring):
        arguments["causal"] = True
    else:
        arguments["mask"] = dense_mask(mask, num_queries, num_keys)
        arguments["may_hide_all"] = mask.may_hide_all(num_queries, num_keys)
        arguments["bias"] = pair_bias(mask, scoring, num_queries, num_keys)
    return kernels.fused_attention(query, key, value, **arguments)


def _tile(mask: AttentionMask) -> int:
    """Smaller for a narrow window, which would hide most of a larger tile."""
    return 128 if mask.window is not None and mask.window <= 128 else 256
