"""Rotary parameters of transformers as a `RotaryEncoding`."""

import math

from keras_tx.layers.rotary_encoding import RotaryEncoding
from keras_tx.layers.rotary_scaling import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    YarnScaling,
)
from keras_tx.weights.options import Options

# Beside these, what says nothing about the computation.
KNOWN = {
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "factor",
    "finetuned",
    "high_freq_factor",
    "long_factor",
    "low_freq_factor",
    "mscale",
    "mscale_all_dim",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "rope_theta",
    "rope_type",
    "short_factor",
    "truncate",
    "type",
}


class Rotary:
    """The rotary parameters of a configuration, in the new spelling or the old.

    New: `rope_parameters`, with everything in it. Old: `rope_scaling`, and beside it `rope_theta`
    and `partial_rotary_factor` (GPT-NeoX: `rotary_emb_base` and `rotary_pct`).

    Args:
        options: The configuration.
        partial: The fraction of a head that is turned where the configuration does not say; None
            for a family that turns all of it.
        renamed: Other names of a type.
    """

    def __init__(self, options: Options, partial: float | None = None, renamed: dict | None = None):
        self.options = options
        given = options.first("rope_scaling", "rope_parameters", default={})
        self.values = {name: value for name, value in given.items() if value is not None}
        if unknown := sorted(set(self.values) - KNOWN):
            raise ValueError(
                f"Rotary parameters that are not supported here: {', '.join(map(str, unknown))}. "
                f"Supported: {', '.join(sorted(KNOWN))}"
            )
        kind = self.values.get("rope_type", self.values.get("type", "default"))
        self.kind = (renamed or {}).get(kind, kind)
        if self.kind not in SCALINGS:
            raise ValueError(
                f"`rope_type` must be one of {', '.join(SCALINGS)}. Received: {self.kind!r}"
            )
        self.theta = self._value("rope_theta", "rope_theta", "rotary_emb_base", default=10000.0)
        names = "partial_rotary_factor", "rotary_pct"
        self.fraction = self._value("partial_rotary_factor", *names, default=partial or 1.0)
        if partial is None and self.fraction != 1:
            raise ValueError(
                f"A {options.model_type} model turns whole heads: `partial_rotary_factor` must be "
                f"1. Received: {self.fraction}"
            )

    def _value(self, name, *outside, default):
        return self.values.get(name, self.options.first(*outside, default=default))

    def __getitem__(self, name):
        if name not in self.values:
            raise ValueError(f"The rotary parameters of type {self.kind!r} must have `{name}`")
        return self.values[name]

    @property
    def max_length(self) -> int:
        return self.options["max_position_embeddings"]

    @property
    def original_length(self) -> int:
        inside = self.values.get("original_max_position_embeddings", self.max_length)
        return self.options.first("original_max_position_embeddings", default=inside)

    @property
    def factor(self) -> float:
        """How many times longer sequences may be than in training."""
        return self.values.get("factor", self.max_length / self.original_length)

    def max_sequence_length(self) -> int:
        """The most positions: dynamic scaling begins where the configuration's number ends."""
        if self.kind == "dynamic":
            return math.ceil(self["factor"] * self.max_length)
        return self.max_length

    def encoding(self, head_dim: int) -> RotaryEncoding:
        return RotaryEncoding(
            float(self.theta),
            scaling=SCALINGS[self.kind](self),
            rotary_dim=None if self.fraction == 1 else int(head_dim * self.fraction),
        )


def _yarn(rotary):
    return YarnScaling(
        rotary.factor,
        rotary.original_length,
        beta_fast=rotary.values.get("beta_fast") or 32.0,
        beta_slow=rotary.values.get("beta_slow") or 1.0,
        mscale=rotary.values.get("mscale"),
        mscale_all_dim=rotary.values.get("mscale_all_dim"),
        attention_factor=rotary.values.get("attention_factor"),
        truncate=rotary.values.get("truncate", True),
    )


def _longrope(rotary):
    return LongRopeScaling(
        rotary.factor,
        rotary.original_length,
        rotary["short_factor"],
        rotary["long_factor"],
        attention_factor=rotary.values.get("attention_factor"),
    )


def _llama3(rotary):
    return Llama3Scaling(
        rotary["factor"],
        rotary.original_length,
        low_frequency_factor=rotary["low_freq_factor"],
        high_frequency_factor=rotary["high_freq_factor"],
    )


SCALINGS = {
    "default": lambda rotary: None,
    "linear": lambda rotary: LinearScaling(rotary["factor"]),
    "dynamic": lambda rotary: DynamicScaling(rotary["factor"], rotary.max_length),
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
}
