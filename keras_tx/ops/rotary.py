"""Rotary position encoding: Su et al. 2021 (RoFormer), Eq. 34."""

import numpy as np
from keras import ops


def rotary_frequencies(dim: int, max_wavelength: float = 10000.0):
    """max_wavelength ** (-2 i / dim) for i < dim / 2, numpy float64 (dim / 2,)."""
    return float(max_wavelength) ** (-np.arange(0, dim, 2) / dim)


def rotary_angles(positions, frequencies):
    """position * frequency, for each pair of features.

    Args:
        positions: Integers (T,) or (B, T).
        frequencies: (H / 2,), or (B, H / 2) where they differ from row to row.

    Returns:
        float32 (T, H / 2), or (B, T, H / 2) if either is given for each row.
    """
    frequencies = ops.convert_to_tensor(frequencies, "float32")
    return ops.cast(positions, "float32")[..., None] * frequencies[..., None, :]


def axial_angles(places, columns: int, frequencies, num_prefix_tokens: int = 0):
    """Angles of places in a grid read row by row: by the row, then by the column.

    Args:
        places: Integers (P,) or (B, P); the first `num_prefix_tokens` places are none of the grid
            and have angles of 0.
        columns: Columns of the grid.
        frequencies: (H / 4,).
        num_prefix_tokens: How many places stand before the grid's.

    Returns:
        float32 (P, H / 2) or (B, P, H / 2).
    """
    places = ops.maximum(ops.cast(places, "int32") - num_prefix_tokens, 0)
    # The first patch, where the prefix is sent, has angles of 0 itself.
    row, column = ops.floor_divide(places, columns), ops.mod(places, columns)
    angles = [rotary_angles(axis, frequencies) for axis in (row, column)]
    return ops.concatenate(angles, axis=-1)


def rotate(x, angles, interleaved: bool = False, scale: float = 1.0):
    """Rotates pairs of features of x by the angles, in float32.

    Args:
        x: (..., T, H), H even.
        angles: float32, broadcastable to (..., T, R / 2). Where R < H, features from R on stay.
        interleaved: Whether a pair is features (2 i, 2 i + 1), as in the paper, or
            (i, i + R / 2), as in GPT-NeoX and Llama.
        scale: Factor of what is rotated.

    Returns:
        (..., T, H) in the dtype of x.
    """
    cos, sin = ops.cos(angles), ops.sin(angles)
    if scale != 1.0:
        cos, sin = cos * scale, sin * scale
    half = angles.shape[-1]
    rest = x[..., 2 * half :]
    wide = ops.cast(x[..., : 2 * half], "float32")
    if interleaved:
        pairs = ops.reshape(wide, (*_leading(wide), half, 2))
        first, second = pairs[..., 0], pairs[..., 1]
    else:
        first, second = wide[..., :half], wide[..., half:]
    turned = [first * cos - second * sin, second * cos + first * sin]
    if interleaved:
        result = ops.reshape(ops.stack(turned, axis=-1), (*_leading(wide), 2 * half))
    else:
        result = ops.concatenate(turned, axis=-1)
    result = ops.cast(result, x.dtype)
    return ops.concatenate([result, rest], axis=-1) if rest.shape[-1] else result


def _leading(x):
    return ops.shape(x)[:-1]
