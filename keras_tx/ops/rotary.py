"""Rotary position encoding: Su et al. 2021 (RoFormer), Eq. 34."""

import numpy as np
from keras import ops


def rotary_angles(positions, dim: int, max_wavelength: float = 10000.0):
    """position * max_wavelength ** (-2 i / dim) for i < dim / 2, float32 (..., T, dim / 2)."""
    # In float64 first: a frequency's error is multiplied by the position.
    frequencies = float(max_wavelength) ** (-np.arange(0, dim, 2) / dim)
    return ops.cast(positions, "float32")[..., None] * ops.convert_to_tensor(frequencies, "float32")


def rotate(x, angles, interleaved: bool = False):
    """Rotates pairs of features of x by the angles, in float32.

    Args:
        x: (..., T, H), H even.
        angles: float32, broadcastable to (..., T, H / 2).
        interleaved: Whether a pair is features (2 i, 2 i + 1), as in the paper, or
            (i, i + H / 2), as in GPT-NeoX and Llama.

    Returns:
        (..., T, H) in the dtype of x.
    """
    cos, sin = ops.cos(angles), ops.sin(angles)
    half = x.shape[-1] // 2
    wide = ops.cast(x, "float32")
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
    return ops.cast(result, x.dtype)


def _leading(x):
    return ops.shape(x)[:-1]
