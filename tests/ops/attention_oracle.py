"""Attention and its gradients in float64 numpy, from matrices, pair by pair of the definition."""

import numpy as np


def visible_pairs(mask, batch, heads, queries, keys):
    """Boolean (B, N, T, S) of an `AttentionMask` whose tensors are arrays."""
    seen = np.ones((batch, heads, queries, keys), bool)
    if mask.explicit is not None:
        seen &= mask.explicit
    for b, t, s in np.ndindex(batch, queries, keys):
        place = t + (keys - queries if mask.offset is None else mask.offset[b])
        if mask.causal and s > place:
            seen[b, :, t, s] = False
        if mask.window is not None and abs(place - s) >= mask.window:
            if not (mask.num_global_tokens and min(place, s) < mask.num_global_tokens):
                seen[b, :, t, s] = False
        if mask.padding is not None and not mask.padding[b, s]:
            seen[b, :, t, s] = False
        if mask.query_segments is not None and mask.query_segments[b, t] != mask.key_segments[b, s]:
            seen[b, :, t, s] = False
    return seen


def attention(inputs, upstream, mask, *, scale=None, soft_cap=None, kept=None, dropout=0.0):
    """The output, the weights, and the gradients by name.

    Args:
        inputs: `query`, `key`, `value` and, optionally, `distance_bias`, `bias` and `sinks`.
        upstream: Gradient of the output.
        mask: An `AttentionMask` of arrays.
        scale, soft_cap, dropout: As for `Scoring`.
        kept: Boolean (B, N, T, S), which weights the dropout keeps.
    """
    inputs = {name: np.asarray(x, "float64") for name, x in inputs.items()}
    query, key, value = (inputs[name] for name in ("query", "key", "value"))
    (batch, heads, queries, dim), keys = query.shape, key.shape[2]
    groups = heads // key.shape[1]
    key, value = (np.repeat(x, groups, axis=1) for x in (key, value))
    scale = dim**-0.5 if scale is None else scale
    product = scale * query @ key.swapaxes(-1, -2)
    scores = product if soft_cap is None else soft_cap * np.tanh(product / soft_cap)
    if "distance_bias" in inputs:
        offset = np.full(batch, keys - queries) if mask.offset is None else mask.offset
        place = offset[:, None] + np.arange(queries)
        distance = place[:, :, None] - np.arange(keys)  # (B, T, S)
        column = distance + inputs["distance_bias"].shape[1] // 2
        scores = scores + inputs["distance_bias"][:, column].swapaxes(0, 1)
    if "bias" in inputs:
        scores = scores + inputs["bias"]
    seen = visible_pairs(mask, batch, heads, queries, keys)
    alive = seen.any(-1, keepdims=True)
    sinks = inputs.get("sinks", np.full(heads, -np.inf))[:, None, None]
    top = np.maximum(np.where(seen, scores, -np.inf).max(-1, keepdims=True, initial=-1e30), sinks)
    exponentials = np.where(seen, np.exp(np.where(seen, scores, top) - top), 0)
    total = np.where(alive, exponentials.sum(-1, keepdims=True) + np.exp(sinks - top), 1)
    weights = exponentials / total
    factor = 1.0 if kept is None else kept / (1 - dropout)
    output = (weights * factor) @ value

    upstream = np.asarray(upstream, "float64")
    d_weights = upstream @ value.swapaxes(-1, -2) * factor
    delta = (weights * d_weights).sum(-1, keepdims=True)
    d_scores = weights * (d_weights - delta)
    slope = 1.0 if soft_cap is None else 1 - np.tanh(product / soft_cap) ** 2
    d_product = d_scores * slope * scale
    by_group = (batch, heads // groups, groups, keys, -1)
    gradients = {
        "query": d_product @ key,
        "key": (d_product.swapaxes(-1, -2) @ query).reshape(by_group).sum(2),
        "value": ((weights * factor).swapaxes(-1, -2) @ upstream).reshape(by_group).sum(2),
    }
    if "distance_bias" in inputs:
        table = np.zeros_like(inputs["distance_bias"])
        for b, t, s in np.ndindex(distance.shape):
            table[:, column[b, t, s]] += d_scores[b, :, t, s]
        gradients["distance_bias"] = table
    if "bias" in inputs:
        gradients["bias"] = d_scores
    if "sinks" in inputs:
        sink_weights = np.where(alive, np.exp(sinks - top) / total, 0)
        gradients["sinks"] = -(sink_weights * delta).sum((0, 2, 3))
    return output, weights, gradients
