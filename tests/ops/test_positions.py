"""Sinusoids and rotations against float64."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_tx.ops.rotary import rotary_angles, rotary_frequencies, rotate
from keras_tx.ops.sinusoid import sinusoid, sinusoid_2d

BASE = 100.0


def wave(position, feature, dim, base=BASE):
    """Vaswani et al. 2017, section 3.5, one number."""
    angle = position / base ** (2 * (feature // 2) / dim)
    return np.cos(angle) if feature % 2 else np.sin(angle)


@pytest.mark.parametrize("dim", [7, 10])
def test_sinusoid(dim):
    positions = np.array([[0, 1, 2, 3, 11], [5, 5, 1000, 4000, 7]])
    got = ops.convert_to_numpy(sinusoid(positions, dim, BASE))
    assert got.dtype == "float32" and got.shape == (2, 5, dim)
    for row, t, feature in np.ndindex(got.shape):
        # float32 holds an angle of 4000 to 2.4e-4
        expected = wave(positions[row, t], feature, dim)
        assert abs(got[row, t, feature] - expected) < 3e-7 * max(10, positions[row, t])


def test_sinusoid_of_images():
    height, width, dim = 3, 5, 12
    got = ops.convert_to_numpy(sinusoid_2d(height, width, dim, BASE))
    assert got.shape == (15, 12)
    for row, column, feature in np.ndindex(height, width, dim):
        place = row if feature < 6 else column
        expected = wave(place, feature % 6, 6)
        assert abs(got[row * width + column, feature] - expected) < 1e-6


def turned(x, positions, interleaved):
    """Su et al. 2021, Eq. 34: each pair of features as a complex number times e^{i m theta}."""
    x = x.astype("float64")
    half = x.shape[-1] // 2
    theta = BASE ** (-2 * np.arange(half) / x.shape[-1])
    phase = np.exp(1j * positions[..., None] * theta)
    if interleaved:
        z = (x[..., 0::2] + 1j * x[..., 1::2]) * phase
        return np.stack([z.real, z.imag], -1).reshape(x.shape)
    z = (x[..., :half] + 1j * x[..., half:]) * phase
    return np.concatenate([z.real, z.imag], -1)


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "pairs"])
def test_rotation(interleaved):
    x = np.random.default_rng(1).standard_normal((2, 3, 5, 14)).astype("float32")
    positions = np.array([0, 1, 2, 3, 11])
    angles = rotary_angles(positions, rotary_frequencies(14, BASE))
    got = ops.convert_to_numpy(rotate(ops.convert_to_tensor(x), angles, interleaved))
    np.testing.assert_allclose(got, turned(x, positions, interleaved), atol=1e-5)


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "pairs"])
def test_products_depend_on_the_distance_alone(interleaved):
    query, key = np.random.default_rng(2).standard_normal((2, 1, 14)).astype("float32")
    frequencies, products = rotary_frequencies(14, BASE), []
    for start in (0, 23, 401):
        q, k = (
            ops.convert_to_numpy(
                rotate(ops.convert_to_tensor(x), rotary_angles([place], frequencies), interleaved)
            )
            for x, place in ((query, start + 5), (key, start))
        )
        products.append((q * k).sum())
    np.testing.assert_allclose(products, products[0], atol=1e-3)
    assert abs(products[0] - (query * key).sum()) > 1e-2


def test_angles_of_far_positions_are_those_of_float64():
    angles = ops.convert_to_numpy(
        rotary_angles(np.array([131071]), rotary_frequencies(128, 5e5))
    ).astype("float64")
    exact = 131071 * 5e5 ** (-np.arange(0, 128, 2) / 128)
    # Two roundings to float32, of the frequency and of the product.
    np.testing.assert_allclose(angles[0], exact, rtol=1.3e-7)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_rotates_in_float32(dtype):
    x = np.random.default_rng(3).standard_normal((1, 1, 5, 14)).astype("float32")
    half = ops.cast(x, dtype)
    exact = ops.convert_to_numpy(ops.cast(half, "float32"))
    positions = np.array([511, 1000, 1001, 2003, 4001])
    got = rotate(half, rotary_angles(positions, rotary_frequencies(14, BASE)))
    assert keras.backend.standardize_dtype(got.dtype) == dtype
    expected = turned(exact, positions, False)
    tolerance = {"bfloat16": 2**-8, "float16": 2**-10}[dtype] * np.abs(expected).max()
    got = ops.convert_to_numpy(ops.cast(got, "float32"))
    np.testing.assert_allclose(got, expected, atol=tolerance)
