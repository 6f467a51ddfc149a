"""Off TensorFlow the artefact is made by a process that rebuilds the model there."""

import os
import signal
import subprocess
import sys
import time

import keras
import numpy as np
import pytest

import keras_tx as ktx
from keras_tx import layers
from keras_tx.export import publish, rebuild
from tests.export import stand_ins
from tests.serving_session import serve

pytestmark = pytest.mark.skipif(
    keras.backend.backend() == "tensorflow", reason="on TensorFlow nothing is rebuilt"
)


def test_a_model_with_a_layer_of_the_user_is_the_same_on_tensorflow(tmp_path):
    model = stand_ins.dense()
    path = publish(model, tmp_path)
    assert os.listdir(tmp_path) == ["1"]
    features = np.random.default_rng(5).standard_normal((7, 5)).astype("float32")
    expected = model.predict(features, verbose=0)
    for batch in (1, 7):
        answer = serve(path, "serving_default", {"features": features[:batch]}, text_ops=False)
        np.testing.assert_allclose(answer["output_0"], expected[:batch], atol=1e-5)


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="only PyTorch has a fused kernel")
def test_a_path_that_tensorflow_has_not_is_left_to_it(tmp_path):
    attention = layers.MultiHeadSelfAttention(2, causal=True, implementation="fused")
    block = layers.TransformerBlock(attention=attention)
    gpt = ktx.GPT(7, num_layers=1, hidden_dim=4, block=block, max_sequence_length=9)
    path = publish(gpt, tmp_path)
    given = {"token_ids": np.array([[3, 5]], "int32"), "lengths": np.array([2], "int32")}
    answer = serve(path, "token_ids", given, text_ops=False)
    served = answer["token_ids"][0, : answer["lengths"][0]]
    assert served.tolist() == gpt.generate([3, 5])


def test_an_error_in_the_other_process_is_shown_whole(tmp_path):
    with pytest.raises(RuntimeError, match="(?s)Traceback.*breaks on TensorFlow"):
        publish(stand_ins.dense(breaks=True), tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_class_of_the_running_script_is_refused_before_anything_starts(tmp_path, monkeypatch):
    @keras.saving.register_keras_serializable(package="script")
    class Mine(keras.layers.Dense):
        pass

    Mine.__module__ = "__main__"
    monkeypatch.setattr(rebuild, "_run_child", None)
    with pytest.raises(ValueError, match="script>Mine, defined in the script that runs"):
        publish(stand_ins.through(Mine(2)), tmp_path)
    assert os.listdir(tmp_path) == []


PUBLISHES = """
import sys
from keras_tx.export import publish
from tests.export import stand_ins
publish(stand_ins.dense(), sys.argv[1])
"""


def test_the_other_process_dies_with_the_one_that_started_it(tmp_path):
    parent = subprocess.Popen(
        [sys.executable, "-c", PUBLISHES, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    child = None
    while child is None and parent.poll() is None:
        child = next(iter(children(parent.pid)), None)
        time.sleep(0.02)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    until = time.monotonic() + 20
    while alive(child) and time.monotonic() < until:
        time.sleep(0.05)
    assert not alive(child)
    assert all(name.startswith(".tmp-") for name in os.listdir(tmp_path))


def children(pid):
    """The processes that `pid` started and that run the rebuilding."""
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat") as stat, open(f"/proc/{entry}/cmdline") as command:
                parent = int(stat.read().rpartition(")")[2].split()[1])
                if parent == pid and "keras_tx.export" in command.read().split("\0"):
                    yield int(entry)
        except OSError:
            continue


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
