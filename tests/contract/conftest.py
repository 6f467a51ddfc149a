"""On JAX: compile quickly, for what is compiled here runs once."""

import keras
import pytest


@pytest.fixture(autouse=True, scope="module")
def quick_compilation():
    if keras.backend.backend() != "jax":
        yield
        return
    import jax

    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
