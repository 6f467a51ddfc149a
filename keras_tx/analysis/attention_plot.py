"""Attention weights as heat maps."""

import os

import numpy as np


def plot_attention(
    scores,
    keys: list[str],
    queries: list[str],
    path: str | os.PathLike | None = None,
    title: str = "",
):
    """Draws attention weights as one heat map for each head.

    Needs matplotlib (the extra `plot`).

    Args:
        scores: Weights (T, S), or (N, T, S) for N heads; rows and columns beyond the labels are
            left out.
        keys: S labels, of what is looked at.
        queries: T labels, of what looks.
        path: If given, the image file to write.
        title: Text above the map.

    Returns:
        The matplotlib figure.

    Raises:
        ValueError: If `scores` has another rank, or is smaller than the labels.

    Example:
        >>> figure = plot_attention([[0.9, 0.1], [0.2, 0.8]], ["the", "cat"], ["il", "gatto"])
    """
    from matplotlib.figure import Figure

    scores = np.asarray(scores, "float32")
    if scores.ndim not in (2, 3):
        raise ValueError(f"`scores` must be (T, S) or (N, T, S). Received: shape {scores.shape}")
    heads = scores.reshape(-1, *scores.shape[-2:])
    if heads.shape[1] < len(queries) or heads.shape[2] < len(keys):
        raise ValueError(
            "`scores` must have a row for each query and a column for each key. Received: shape "
            f"{scores.shape} for {len(queries)} queries and {len(keys)} keys"
        )
    width = max(2.5, 0.32 * len(keys) + 1.2)
    height = max(2.5, 0.28 * len(queries) + 1.2)
    figure = Figure(figsize=(width * len(heads), height), layout="constrained")
    axes = figure.subplots(1, len(heads), squeeze=False)[0]
    for number, (axis, weights) in enumerate(zip(axes, heads, strict=True)):
        axis.imshow(weights[: len(queries), : len(keys)], vmin=0.0, vmax=1.0, cmap="viridis")
        axis.set_xticks(range(len(keys)), keys, rotation=90)
        axis.set_yticks(range(len(queries)), queries)
        axis.set_title(title if len(heads) == 1 else f"{title} head {number}".strip())
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure
