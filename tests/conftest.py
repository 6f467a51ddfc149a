"""What every test gets: its own seed, and the name of the backend it runs on."""

import os

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
