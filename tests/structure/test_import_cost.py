"""What `import keras_tx` brings in. How long it takes is measured by benchmarks/import_time.py."""

import json
import os
import subprocess
import sys

import pytest

HEAVY = {
    "PIL",
    "grpc",
    "keras_hub",
    "keras_nlp",
    "matplotlib",
    "pandas",
    "safetensors",
    "scipy",
    "sentencepiece",
    "sklearn",
    "tensorflow_datasets",
    "tensorflow_serving",
    "tensorflow_text",
    "tokenizers",
    "transformers",
}
BACKENDS = {"tensorflow", "jax", "torch"}
PROGRAM = """
import json, sys
import keras
before = set(sys.modules)
import keras_tx
print(json.dumps({"before": sorted(before), "after": sorted(sys.modules)}))
"""


def packages(modules):
    return {name.partition(".")[0] for name in modules}


@pytest.fixture(scope="module")
def loaded():
    import keras

    environment = {**os.environ, "KERAS_BACKEND": keras.backend.backend()}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def test_no_other_backend_is_imported(loaded, backend):
    added = packages(loaded["after"]) - packages(loaded["before"])
    assert not added & BACKENDS
    if backend != "tensorflow":
        assert "tensorflow" not in packages(loaded["after"])


def test_nothing_heavy_is_imported(loaded):
    added = packages(loaded["after"]) - packages(loaded["before"])
    assert not added & HEAVY
