"""What every test gets: its own seed, and the name of the backend it runs on."""

import gc
import os
from pathlib import Path

# Before anything imports Keras. A machine with an accelerator says otherwise in its environment.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import keras  # noqa: E402
import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def seed():
    keras.utils.set_random_seed(1729)


@pytest.fixture
def backend():
    return keras.backend.backend()


# Linux lets a process map 65,530 pieces of memory, and each program that JAX compiles takes some.
MANY_MAPS = 25_000


@pytest.fixture(autouse=True, scope="module")
def few_programs():
    """Forgets what a file compiled, for JAX before the process has no room for more."""
    yield
    gc.collect()  # models and their programs are cycles
    maps = Path("/proc/self/maps")
    if keras.backend.backend() != "jax" or not maps.exists():
        return
    if maps.read_bytes().count(b"\n") > MANY_MAPS:
        import jax

        jax.clear_caches()
