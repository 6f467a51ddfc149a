"""Learned positions of an image's patches, for images of another size."""

import numpy as np

INTERPOLATIONS = ("bicubic", "bilinear")


def resize_positions(
    table,
    grid: tuple[int, int],
    new_grid: tuple[int, int],
    *,
    num_prefix_tokens: int = 0,
    interpolation: str = "bicubic",
    antialias: bool = False,
):
    """Interpolates a table of position vectors from one grid of patches to another.

    As `torch.nn.functional.interpolate(..., align_corners=False)`, which checkpoints of vision
    transformers are resized with: `antialias` is False for ViT, DeiT and DINOv2, True for DINOv2
    with registers. `keras.ops.image.resize` has another cubic kernel on other backends.

    Args:
        table: (num_prefix_tokens + rows * columns, D), patches row by row.
        grid: Its rows and columns.
        new_grid: Rows and columns of the result.
        num_prefix_tokens: How many vectors stand before the patches'; they stay.
        interpolation: "bicubic" or "bilinear".
        antialias: Whether a smaller grid averages over all the patches that it covers.

    Returns:
        numpy float32 (num_prefix_tokens + new rows * new columns, D).

    Raises:
        ValueError: If the table is not of this grid, or the interpolation is unknown.
    """
    if interpolation not in INTERPOLATIONS:
        raise ValueError(
            f"`interpolation` must be one of {INTERPOLATIONS}. Received: {interpolation!r}"
        )
    table = np.asarray(table, "float64")
    expected = num_prefix_tokens + grid[0] * grid[1]
    if table.ndim != 2 or len(table) != expected:
        raise ValueError(
            f"`table` must be ({expected}, features) for grid={tuple(grid)} and "
            f"num_prefix_tokens={num_prefix_tokens}. Received: shape {table.shape}"
        )
    patches = table[num_prefix_tokens:].reshape(*grid, -1)
    rows, columns = (
        _interpolation_weights(*sizes, interpolation, antialias)
        for sizes in zip(grid, new_grid, strict=True)
    )
    patches = np.einsum("ir,jc,rcd->ijd", rows, columns, patches)
    patches = patches.reshape(-1, table.shape[1])
    return np.concatenate([table[:num_prefix_tokens], patches]).astype("float32")


def _interpolation_weights(size: int, new_size: int, interpolation: str, antialias: bool):
    """(new_size, size): what each new cell takes of each old one. Every row sums to 1."""
    scale = size / new_size
    centers = (np.arange(new_size) + 0.5) * scale - 0.5  # of the new cells, among the old ones
    margin = 0 if antialias else 2
    cells = np.arange(-margin, size + margin)
    distance = np.abs(centers[:, None] - cells[None, :])
    if antialias:
        distance /= max(scale, 1.0)
    if interpolation == "bilinear":
        weights = np.maximum(1 - distance, 0)
    else:  # PyTorch's two values of Keys' parameter
        weights = _cubic(distance, -0.5 if antialias else -0.75)
    if antialias:  # nothing beyond the border
        return weights / weights.sum(axis=1, keepdims=True)
    folded = np.zeros((new_size, size))  # beyond the border the last cell repeats
    np.add.at(folded, (slice(None), np.clip(cells, 0, size - 1)), weights)
    return folded


def _cubic(x, a: float):
    """Keys 1981, Eq. 4, with parameter a; x is not negative."""
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * a - 4 * a
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))
