"""What `RotaryEncoding(scaling=)` takes: frequencies for sequences longer than in training."""

import keras

from keras_tx.configurable import Configurable
from keras_tx.ops import rotary_scaling


class RotaryScaling(Configurable):
    """Base of the scalings.

    A subclass is registered with Keras, keeps its constructor's arguments under their own names
    and gives

    - `depends_on_length`: whether it needs `lengths`;
    - `frequencies(dim, max_wavelength, lengths=None)`: of `dim / 2` pairs of features, numpy
      float64 (dim / 2,), or float32 (B, dim / 2) where they depend on lengths (B,) given as a
      tensor. None stands for a length of training.
    - `attention_factor`: what cosines and sines are multiplied by.
    """

    attention_factor = 1.0

    depends_on_length = False

    def frequencies(self, dim: int, max_wavelength: float, lengths=None):
        raise NotImplementedError


@keras.saving.register_keras_serializable(package="keras_tx")
class LinearScaling(RotaryScaling):
    """Position interpolation: all rotary frequencies are divided by `factor`.

    Args:
        factor: How many times longer than in training sequences may be.

    Reference:
        Chen et al. 2023, "Extending Context Window of Large Language Models via Positional
        Interpolation".
    """

    def __init__(self, factor: float):
        self.factor = _positive("factor", factor)

    def frequencies(self, dim, max_wavelength, lengths=None):
        return rotary_scaling.linear_frequencies(dim, max_wavelength, self.factor)


@keras.saving.register_keras_serializable(package="keras_tx")
class DynamicScaling(RotaryScaling):
    """Dynamic NTK-aware scaling: rotary wavelengths grow with the length, none up to training's.

    Depends on a length: `RotaryEncoding` takes `lengths`, the length that each row has or will
    have. It must not change during one generation.

    Args:
        factor: How fast wavelengths grow with the length.
        original_length: Length of training's sequences.

    Reference:
        Peng et al. 2023, "YaRN", section 3.1 and appendix A.2.
    """

    depends_on_length = True

    def __init__(self, factor: float, original_length: int):
        self.factor = _positive("factor", factor)
        self.original_length = _length(original_length)

    def frequencies(self, dim, max_wavelength, lengths=None):
        return rotary_scaling.dynamic_frequencies(
            dim, max_wavelength, self.factor, self.original_length, lengths
        )


@keras.saving.register_keras_serializable(package="keras_tx")
class YarnScaling(RotaryScaling):
    """YaRN: slow rotary pairs are interpolated, fast ones stay, and attention is sharpened.

    Args:
        factor: How many times longer than in training sequences may be.
        original_length: Length of training's sequences.
        beta_fast: Pairs that turn more often than this in training stay.
        beta_slow: Pairs that turn less often than this are divided by `factor`.
        mscale, mscale_all_dim: If both are given, `attention_factor` is
            (0.1 mscale ln factor + 1) / (0.1 mscale_all_dim ln factor + 1), as in DeepSeek-V2.
        attention_factor: What cosines and sines are multiplied by. Default:
            0.1 ln factor + 1.
        truncate: Whether the bounds of the gradual change are rounded to whole pairs.

    Reference:
        Peng et al. 2023, "YaRN: Efficient Context Window Extension of Large Language Models",
        Eq. 18-22.
    """

    def __init__(
        self,
        factor: float,
        original_length: int,
        *,
        beta_fast: float = 32.0,
        beta_slow: float = 1.0,
        mscale: float | None = None,
        mscale_all_dim: float | None = None,
        attention_factor: float | None = None,
        truncate: bool = True,
    ):
        self.factor = _positive("factor", factor)
        self.original_length = _length(original_length)
        if not 0 < beta_slow < beta_fast:
            raise ValueError(
                "`beta_slow` must be positive and below `beta_fast`: slower pairs are changed "
                f"more. Received: beta_fast={beta_fast}, beta_slow={beta_slow}"
            )
        self.beta_fast = beta_fast
        self.beta_slow = beta_slow
        self.mscale = mscale
        self.mscale_all_dim = mscale_all_dim
        self._remember(attention_factor=attention_factor)
        if attention_factor is None:
            attention_factor = rotary_scaling.yarn_attention_factor(factor, mscale, mscale_all_dim)
        self.attention_factor = _positive("attention_factor", attention_factor)
        self.truncate = truncate

    def frequencies(self, dim, max_wavelength, lengths=None):
        return rotary_scaling.yarn_frequencies(
            dim,
            max_wavelength,
            self.factor,
            self.original_length,
            self.beta_fast,
            self.beta_slow,
            self.truncate,
        )


@keras.saving.register_keras_serializable(package="keras_tx")
class LongRopeScaling(RotaryScaling):
    """LongRoPE: every rotary pair has factors of its own, one for short and one for long rows.

    Depends on a length: `RotaryEncoding` takes `lengths`, the length that each row has or will
    have. It must not change during one generation.

    Args:
        factor: How many times longer than in training sequences may be; it decides
            `attention_factor` alone.
        original_length: Length of training's sequences; rows above it are long.
        short_factors, long_factors: What each pair's frequency is divided by, one number a pair.
        attention_factor: What cosines and sines are multiplied by, in all rows. Default:
            sqrt(1 + ln factor / ln original_length).

    Reference:
        Ding et al. 2024, "LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens".
    """

    depends_on_length = True

    def __init__(
        self,
        factor: float,
        original_length: int,
        short_factors: list[float],
        long_factors: list[float],
        *,
        attention_factor: float | None = None,
    ):
        self.factor = _positive("factor", factor)
        self.original_length = _length(original_length)
        if len(short_factors) != len(long_factors):
            raise ValueError(
                "`short_factors` and `long_factors` must be equally many, one for each pair of "
                f"features. Received: {len(short_factors)} and {len(long_factors)}"
            )
        self.short_factors = [_positive("short_factors", value) for value in short_factors]
        self.long_factors = [_positive("long_factors", value) for value in long_factors]
        self._remember(attention_factor=attention_factor)
        if attention_factor is None:
            attention_factor = rotary_scaling.longrope_attention_factor(factor, original_length)
        self.attention_factor = _positive("attention_factor", attention_factor)

    def frequencies(self, dim, max_wavelength, lengths=None):
        if len(self.short_factors) != dim // 2:
            raise ValueError(
                f"`short_factors` and `long_factors` must be {dim // 2} numbers, one for each pair "
                f"of the {dim} features turned. Received: {len(self.short_factors)}"
            )
        return rotary_scaling.longrope_frequencies(
            dim,
            max_wavelength,
            self.original_length,
            self.short_factors,
            self.long_factors,
            lengths,
        )


@keras.saving.register_keras_serializable(package="keras_tx")
class Llama3Scaling(RotaryScaling):
    """Llama 3.1's: slow rotary pairs are interpolated, fast ones stay.

    Args:
        factor: How many times longer than in training sequences may be.
        original_length: Length of training's sequences.
        low_frequency_factor: Pairs that turn less often than this in training are divided by
            `factor`.
        high_frequency_factor: Pairs that turn more often than this stay.

    Reference:
        Llama team 2024, "The Llama 3 Herd of Models", section 3.4.2, and Meta's `apply_scaling`.
    """

    def __init__(
        self,
        factor: float,
        original_length: int,
        *,
        low_frequency_factor: float = 1.0,
        high_frequency_factor: float = 4.0,
    ):
        self.factor = _positive("factor", factor)
        self.original_length = _length(original_length)
        if not 0 < low_frequency_factor < high_frequency_factor:
            raise ValueError(
                "`low_frequency_factor` must be positive and below `high_frequency_factor`. "
                f"Received: low_frequency_factor={low_frequency_factor}, "
                f"high_frequency_factor={high_frequency_factor}"
            )
        self.low_frequency_factor = low_frequency_factor
        self.high_frequency_factor = high_frequency_factor

    def frequencies(self, dim, max_wavelength, lengths=None):
        return rotary_scaling.llama3_frequencies(
            dim,
            max_wavelength,
            self.factor,
            self.original_length,
            self.low_frequency_factor,
            self.high_frequency_factor,
        )


def _positive(name: str, value: float) -> float:
    if not isinstance(value, (int, float)) or value <= 0:
        raise ValueError(f"`{name}` must be a positive number. Received: {value!r}")
    return value


def _length(value: int) -> int:
    if not isinstance(value, int) or value < 2:
        raise ValueError(
            "`original_length` must be an integer above 1, the length of training's sequences. "
            f"Received: {value!r}"
        )
    return value
