"""Our models beside those of transformers: `python -m tests.oracles.parity` prints the table.

KERAS_BACKEND chooses the backend. Each row is a tiny random model, its configuration and tensors
read by `keras_tx.weights`; the exit code is 1 if a row differs by more than its limit.
"""

import os
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from functools import cache  # noqa: E402
from typing import NamedTuple  # noqa: E402

import keras  # noqa: E402
import numpy as np  # noqa: E402

from keras_tx import weights  # noqa: E402
from tests.models import tools  # noqa: E402
from tests.oracles.cases import CASES  # noqa: E402
from tests.oracles.reference import reference  # noqa: E402

TOLERANCE = 1e-5


class Parity(NamedTuple):
    scale: float  # the largest output
    difference: float  # the largest

    @property
    def limit(self):
        return TOLERANCE * max(1.0, self.scale)

    @property
    def holds(self):
        return self.difference <= self.limit  # not if it is no number

    def __str__(self):
        verdict = "pass" if self.holds else "FAIL"
        return f"{self.scale:10.3f} {self.difference:12.2e} {self.limit:9.1e}  {verdict}"


@cache
def ours(name):
    """The model of a row, with the weights of transformers'."""
    return rebuilt(reference(name), {})


def rebuilt(found, changes):
    """The model of a reference, its configuration changed."""
    config = {**found.config, **changes}
    model = weights.build(config)
    weights.assign(model, found.state, config)
    return model


def measure(name, model=None) -> Parity:
    found = reference(name)
    outputs = run(model or ours(name), found)
    difference = np.abs(outputs.astype("float64") - found.outputs).max()
    return Parity(float(np.abs(found.outputs).max()), float(difference))


def run(model, found):
    inputs = found.inputs
    if found.case.is_decoder:
        rows, length = inputs.shape
        inputs = {"token_ids": inputs}
        if any(block.attention.depends_on_length for block in model.blocks):
            inputs["lengths"] = np.full(rows, length, "int32")
    return tools.forward(model)(inputs)


def main():
    width = max(map(len, CASES))
    backend = f"On {keras.backend.backend()}"
    print(f"{backend:{width}} {'largest':>10} {'difference':>12} {'limit':>9}")
    failed = 0
    for name in CASES:
        row = measure(name)
        failed += not row.holds
        print(f"{name:{width}} {row}", flush=True)
    print(f"{len(CASES) - failed} of {len(CASES)} rows hold")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
