"""Compiling is most of the time of these tests on JAX, and tiny models gain nothing from it."""

import keras

if keras.backend.backend() == "jax":
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
