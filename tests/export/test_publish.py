"""`publish` and `export`: whole or not at all, and right, whatever the model."""

import os
import signal
import subprocess
import sys
import time

import keras
import numpy as np
import pytest

from keras_tx.export import artefact, export, lint, publish, verify, workspace
from tests.export import stand_ins
from tests.serving_session import ServingError, serve

on_tensorflow = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow",
    reason="the step is the same on every backend, and off TensorFlow happens in another process",
)
features = np.random.default_rng(5).standard_normal((7, 5)).astype("float32")


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(7)
    return stand_ins.dense()


@pytest.fixture
def written(monkeypatch):
    """Takes the place of the writing of the artefact, for tests of what is around it."""

    def write(model, path, *, max_new_tokens, descriptor):
        (path / "variables").mkdir(parents=True)
        (path / "saved_model.pb").write_text("graph")

    monkeypatch.setattr(artefact, "write", write)


def versions(base):
    return sorted(name for name in os.listdir(base) if name.isdigit())


@on_tensorflow
def test_a_model_of_keras_is_published_and_answers_as_it_does(model, tmp_path):
    path = publish(model, tmp_path / "models" / "dense")
    assert path == tmp_path / "models" / "dense" / "1"
    assert os.listdir(path.parent) == ["1"]
    expected = model.predict(features, verbose=0)
    for batch in (1, 7):
        answer = serve(path, "serving_default", {"features": features[:batch]}, text_ops=False)
        np.testing.assert_allclose(answer["output_0"], expected[:batch], atol=1e-5)


def test_versions_count_up_and_stay(model, tmp_path, written):
    assert [publish(model, tmp_path).name for _ in range(2)] == ["1", "2"]
    before = (tmp_path / "1" / "saved_model.pb").stat()
    (tmp_path / "41").mkdir()
    assert publish(model, str(tmp_path)) == tmp_path / "42"
    after = (tmp_path / "1" / "saved_model.pb").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


@on_tensorflow
def test_export_writes_exactly_there_and_replaces_only_a_saved_model(model, tmp_path):
    place = tmp_path / "somewhere" / "deep"
    assert export(model, place) is None
    first = serve(place, "serving_default", {"features": features}, text_ops=False)
    other = stand_ins.dense()
    export(other, place)
    assert os.listdir(place.parent) == ["deep"]
    second = serve(place, "serving_default", {"features": features}, text_ops=False)
    np.testing.assert_allclose(second["output_0"], other.predict(features, verbose=0), atol=1e-5)
    assert not np.allclose(first["output_0"], second["output_0"])
    (place / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="a SavedModel to replace"):
        export(model, place)
    assert (place / "notes.txt").read_text() == "mine"


def test_a_place_or_a_model_that_cannot_be_is_a_clear_error(model, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    (tmp_path / "version").mkdir()
    (tmp_path / "version" / "saved_model.pb").touch()
    with pytest.raises(ValueError, match="`base` must be a folder"):
        publish(model, tmp_path / "file")
    with pytest.raises(ValueError, match="`base` must be a folder"):
        publish(model, tmp_path / "file" / "below")
    with pytest.raises(ValueError, match="itself a SavedModel"):
        publish(model, tmp_path / "version")
    for place in ("", "gs://bucket/model", None, 3):
        with pytest.raises(ValueError, match="path of a local folder"):
            publish(model, place)
    with pytest.raises(ValueError, match="`path` must be free"):
        export(model, tmp_path / "file")
    with pytest.raises(ValueError, match="must be a keras.Model"):
        publish("model", tmp_path / "base")
    with pytest.raises(ValueError, match="not built"):
        publish(keras.Sequential([keras.layers.Dense(2)]), tmp_path / "base")
    with pytest.raises(ValueError, match="Dense|does not"):
        publish(model, tmp_path / "base", max_new_tokens=3)
    assert sorted(os.listdir(tmp_path)) == ["file", "version"]


STEPS = [
    (keras.Model, "export"),
    (lint, "lint"),
    (verify, "verify_keras_export"),
    (workspace, "sync"),
    (os, "fsync"),
    (os, "rename"),
]


@on_tensorflow
@pytest.mark.parametrize("where, name", STEPS, ids=[name for _, name in STEPS])
def test_whatever_fails_leaves_nothing(model, tmp_path, monkeypatch, where, name):
    def fail(*args, **kwargs):
        raise KeyboardInterrupt("injected")

    monkeypatch.setattr(where, name, fail)
    with pytest.raises(KeyboardInterrupt, match="injected"):
        publish(model, tmp_path)
    assert os.listdir(tmp_path) == []


KILLED = """
import os, signal, sys
import keras
from keras_tx.export import artefact, lint, publish, verify, workspace
from tests.export import stand_ins

base, model = sys.argv[1], stand_ins.dense()

def killing(function):
    def killed(*args, **kwargs):
        if after:
            function(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)
    return killed

# TensorFlow runs in the first publication, and is what a killed one wrote: the forks only copy.
whole = publish(model, base)
def write(model, path, **_):
    import shutil
    shutil.copytree(whole, path)
artefact.write = write

count = 0
for where, name in ((artefact, "write"), (workspace, "sync"), (os, "fsync"), (os, "rename"),
                    (workspace, "_sync_one"), (workspace, "_remove_abandoned")):
    for after in (False, True):
        child = os.fork()
        if not child:
            setattr(where, name, killing(getattr(where, name)))
            publish(model, base)
            os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL, (name, after, status)
        for version in os.listdir(base):
            if version.isdigit():
                lint.lint(workspace.Path(base, version))
                with verify.session(workspace.Path(base, version)) as (signatures, _):
                    assert "serving_default" in signatures
        count += 1
final = publish(model, base)
print(count, final.name, sorted(os.listdir(base)))
"""


@on_tensorflow
def test_a_kill_at_any_step_leaves_no_half_version_and_the_next_run_cleans(tmp_path):
    found = python(KILLED, str(tmp_path))
    # Killed once after the rename, its version is whole; every other kill published nothing.
    assert found.splitlines()[-1] == "12 3 ['1', '2', '3']"


PUBLISHES = """
import sys
from keras_tx.export import publish
from tests.export import stand_ins
model = stand_ins.dense()
print("ready", flush=True)
publish(model, sys.argv[1])
"""


@on_tensorflow
def test_two_processes_publish_at_the_same_time(tmp_path):
    processes = [start(PUBLISHES, str(tmp_path), stdout=subprocess.DEVNULL) for _ in range(2)]
    for process in processes:
        assert process.wait() == 0
    assert versions(tmp_path) == ["1", "2"] and len(os.listdir(tmp_path)) == 2
    for version in "12":
        answer = serve(tmp_path / version, "serving_default", {"features": features})
        assert answer["output_0"].shape == (7, 3)


@on_tensorflow
@pytest.mark.soak
def test_kills_at_any_moment(tmp_path):
    """A publishing process killed at moments that sweep over all of `publish`."""

    def begin():
        process = start(PUBLISHES, str(tmp_path), stdout=subprocess.PIPE)
        assert process.stdout.readline() == "ready\n"
        return process, time.monotonic()

    process, began = begin()
    assert process.wait() == 0
    whole = time.monotonic() - began
    for part in np.linspace(0.02, 1.0, 24):
        process, began = begin()
        time.sleep(part * whole)
        process.send_signal(signal.SIGKILL)
        process.wait()
        for version in versions(tmp_path):
            answer = serve(tmp_path / version, "serving_default", {"features": features})
            assert np.isfinite(answer["output_0"]).all()
    process, _ = begin()
    assert process.wait() == 0
    assert sorted(os.listdir(tmp_path)) == versions(tmp_path)


@on_tensorflow
@pytest.mark.parametrize(
    "layer, shape, said",
    [
        (stand_ins.SlicedUpdate(), (5,), "XlaDynamicUpdateSlice.*scatter_update"),
        (keras.layers.Conv2D(4, 3, groups=2), (5, 5, 4), "must be compiled by XLA"),
        (stand_ins.CallsPython(), (5,), "calls back into Python"),
    ],
    ids=["xla operation", "compiled by xla", "python"],
)
def test_what_the_server_refuses_is_not_published(tmp_path, layer, shape, said):
    model = stand_ins.through(layer, shape)
    with pytest.raises(ValueError, match=said):
        publish(model, tmp_path / "base")
    assert os.listdir(tmp_path / "base") == []
    # The stand-in server refuses the same: the check is not stricter than it must be.
    keras.Model.export(model, str(tmp_path / "unchecked"), verbose=False)
    (name,) = [tensor.name for tensor in model.inputs]
    with pytest.raises(ServingError, match="XLA compilation disabled|callback|PyFunc"):
        serve(tmp_path / "unchecked", "serving_default", {name: np.ones((2, *shape))})


@on_tensorflow
def test_an_artefact_that_answers_otherwise_is_not_published(model, tmp_path, monkeypatch):
    honest = keras.Model.export

    def dishonest(self, *args, **kwargs):
        weights = self.get_weights()
        self.set_weights([weight + 1 for weight in weights])
        honest(self, *args, **kwargs)
        self.set_weights(weights)

    monkeypatch.setattr(keras.Model, "export", dishonest)
    with pytest.raises(RuntimeError, match="does not answer as the model does"):
        publish(model, tmp_path)
    assert os.listdir(tmp_path) == []


def start(program, *arguments, **options):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments], env=environment, text=True, **options
    )


def python(program, *arguments):
    process = start(program, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    return output
