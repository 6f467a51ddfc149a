"""Rotary frequencies for sequences longer than those of training.

Every function gives the frequencies of `dim / 2` pairs of features: numpy float64 (dim / 2,), or,
where they depend on lengths that are tensors (B,), float32 (B, dim / 2).
"""

import math

import numpy as np
from keras import ops

from keras_tx.ops.rotary import rotary_frequencies


def linear_frequencies(dim: int, max_wavelength: float, factor: float):
    """Position interpolation: every frequency divided by `factor`. Chen et al. 2023."""
    return rotary_frequencies(dim, max_wavelength) / factor


def dynamic_frequencies(
    dim: int, max_wavelength: float, factor: float, original_length: int, lengths=None
):
    """NTK-aware: the wavelengths' base grows with the length, the shortest wavelength stays.

    `base * (factor * length / original_length - (factor - 1)) ** (dim / (dim - 2))`, which is
    `base` up to `original_length`. Peng et al. 2023 (YaRN), section 3.1 and appendix A.2.
    """
    frequencies = rotary_frequencies(dim, max_wavelength)
    if lengths is None:
        return frequencies
    exponents = -np.arange(0, dim, 2) / max(dim - 2, 1)
    if isinstance(lengths, (int, np.integer)):
        excess = max(lengths - original_length, 0)
        return frequencies * (1 + factor * excess / original_length) ** exponents
    # log1p and exact integers: the stretch is raised to a power only once.
    excess = ops.cast(ops.maximum(lengths - original_length, 0), "float32")
    stretch = ops.log1p(excess * (factor / original_length))[..., None]
    exponents, frequencies = (
        ops.convert_to_tensor(array, "float32") for array in (exponents, frequencies)
    )
    return frequencies * ops.exp(stretch * exponents)


def yarn_frequencies(
    dim: int,
    max_wavelength: float,
    factor: float,
    original_length: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
):
    """Divides by `factor` only where a pair turns less than `beta_slow` times in training.

    Pairs that turn more than `beta_fast` times stay; between the two the change is gradual.
    Peng et al. 2023 (YaRN), Eq. 18-20; with `truncate` the bounds are whole pairs.
    """

    def pair_of(turns):
        """The pair, as a real number, that turns so often within the original length."""
        wavelength = original_length / (turns * 2 * math.pi)
        return dim * math.log(wavelength) / (2 * math.log(max_wavelength))

    low, high = pair_of(beta_fast), pair_of(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    width = high - low or 1e-3
    interpolated = np.clip((np.arange(dim // 2) - low) / width, 0, 1)
    frequencies = rotary_frequencies(dim, max_wavelength)
    return frequencies * (1 - interpolated + interpolated / factor)


def yarn_attention_factor(
    factor: float, mscale: float | None = None, mscale_all_dim: float | None = None
) -> float:
    """What cosines and sines are multiplied by. Peng et al. 2023 (YaRN), Eq. 22.

    With both `mscale` and `mscale_all_dim` it is the quotient of theirs, as in DeepSeek-V2.
    """

    def temperature(weight):
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if mscale and mscale_all_dim:
        return temperature(mscale) / temperature(mscale_all_dim)
    return temperature(1.0)


def longrope_frequencies(
    dim: int,
    max_wavelength: float,
    original_length: int,
    short_factors,
    long_factors,
    lengths=None,
):
    """Divides each frequency by a factor of its own; longer rows by another set of factors.

    Ding et al. 2024 (LongRoPE); `long_factors` are for lengths above `original_length`.
    """
    frequencies = rotary_frequencies(dim, max_wavelength)
    short, long = (frequencies / np.asarray(f, "float64") for f in (short_factors, long_factors))
    if lengths is None:
        return short
    if isinstance(lengths, (int, np.integer)):
        return long if lengths > original_length else short
    short, long = (ops.convert_to_tensor(array, "float32") for array in (short, long))
    return ops.where(ops.greater(lengths, original_length)[..., None], long, short)


def longrope_attention_factor(factor: float, original_length: int) -> float:
    """sqrt(1 + ln factor / ln original_length), at least 1."""
    return math.sqrt(1 + max(math.log(factor), 0.0) / math.log(original_length))


def llama3_frequencies(
    dim: int,
    max_wavelength: float,
    factor: float,
    original_length: int,
    low_frequency_factor: float = 1.0,
    high_frequency_factor: float = 4.0,
):
    """Divides by `factor` the pairs that turn less than `low_frequency_factor` times in training.

    Those that turn more than `high_frequency_factor` times stay; between the two the change is
    gradual. As in Meta's code for Llama 3.1.
    """
    frequencies = rotary_frequencies(dim, max_wavelength)
    turns = original_length * frequencies / (2 * math.pi)
    width = high_frequency_factor - low_frequency_factor
    kept = np.clip((turns - low_frequency_factor) / width, 0, 1)
    return frequencies * (kept + (1 - kept) / factor)
