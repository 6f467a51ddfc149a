"""Sinusoidal position encoding: Vaswani et al. 2017, section 3.5."""

import numpy as np
from keras import ops


def sinusoid(positions, dim: int, max_wavelength: float = 10000.0):
    """sin and cos of position / max_wavelength ** (2 i / dim), interleaved.

    Args:
        positions: Integers of any shape.
        dim: Number of features; when odd, the last one is a sine.
        max_wavelength: Base of the geometric progression of wavelengths.

    Returns:
        float32 (..., dim): feature 2 i is the sine, 2 i + 1 the cosine.
    """
    exponents = 2 * (np.arange(dim) // 2) / dim
    frequencies = ops.convert_to_tensor(float(max_wavelength) ** -exponents, "float32")
    angles = ops.cast(positions, "float32")[..., None] * frequencies
    is_sine = ops.convert_to_tensor(np.arange(dim) % 2 == 0)
    return ops.where(is_sine, ops.sin(angles), ops.cos(angles))


def sinusoid_2d(height: int, width: int, dim: int, max_wavelength: float = 10000.0):
    """Rows in the first half of the features, columns in the second, each a `sinusoid`.

    Returns:
        float32 (height * width, dim), row by row. dim must be divisible by 4.
    """
    rows = sinusoid(ops.repeat(ops.arange(height), width), dim // 2, max_wavelength)
    columns = sinusoid(ops.tile(ops.arange(width), height), dim // 2, max_wavelength)
    return ops.concatenate([rows, columns], axis=-1)
