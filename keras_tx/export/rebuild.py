"""Rebuilds a model on the TensorFlow backend, in a process of its own, and writes its artefact."""

import contextlib
import importlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import keras

from keras_tx.export.verify import close, made_up, tolerance

# The exit status of a child whose model, not its work, was at fault.
REFUSED = 3


def write_elsewhere(
    model: keras.Model, path: Path, *, max_new_tokens: int | None, descriptor: int
) -> None:
    """Writes the artefact at `path` in a TensorFlow process, from what `model.save` keeps.

    `descriptor` holds the lock of the workspace around `path`; the child holds it too.
    """
    saved = path.with_name("model.keras")
    model.save(saved)
    request = {
        "model": str(saved),
        "path": str(path),
        "max_new_tokens": max_new_tokens,
        "modules": _modules(saved),
        "floatx": keras.config.floatx(),
        "epsilon": keras.config.epsilon(),
        "image_data_format": keras.config.image_data_format(),
        "fingerprint": _fingerprint(model),
        "tolerance": _tolerance(model),
    }
    file = path.with_name("request.pickle")
    file.write_bytes(pickle.dumps(request))
    _run_child(file, descriptor)


def _modules(saved):
    """The modules of the classes and functions in a `.keras` file that are not Keras' own."""
    with zipfile.ZipFile(saved) as archive:
        config = json.loads(archive.read("config.json"))
    modules, homeless = set(), set()
    left = [config]
    while left:
        item = left.pop()
        if isinstance(item, list):
            left.extend(item)
        elif isinstance(item, dict):
            # The artefact needs neither the optimizer nor the loss.
            left.extend(value for key, value in item.items() if key != "compile_config")
            if item.get("registered_name"):
                if item.get("module") in (None, "__main__"):
                    homeless.add(item["registered_name"])
                else:
                    modules.add(item["module"])
    if homeless:
        raise ValueError(
            f"The model uses {', '.join(sorted(homeless))}, defined in the script that runs. Off "
            "TensorFlow the model is rebuilt in another process, which cannot import a script: "
            "move the definition into a module and import it from there."
        )
    return sorted(modules)


def _fingerprint(model):
    """What the model says of made-up inputs, as a list of arrays; None if it takes none such."""
    from keras_tx.export import image, text

    if text.generates(model):
        return text.fingerprint(model)
    if image.classifies(model):
        outputs = model(image.pixels(model), training=False)
    else:
        try:
            inputs = keras.tree.map_structure(lambda t: made_up(t.shape, t.dtype), model.input)
            outputs = model(inputs, training=False)
        except Exception:  # of sizes that only its author knows
            return None
    return [keras.ops.convert_to_numpy(output) for output in keras.tree.flatten(outputs)]


def _tolerance(model):
    """How far the rebuilt model, on a CPU, may be from this one: accelerators round products."""
    if keras.backend.backend() == "torch":
        on_cpu = all(variable.value.device.type == "cpu" for variable in model.variables)
    else:
        on_cpu = all(name.startswith("cpu") for name in keras.distribution.list_devices())
    return tolerance(model) if on_cpu else max(2e-2, tolerance(model))


def _run_child(request, descriptor):
    environment = {
        **os.environ,
        "KERAS_BACKEND": "tensorflow",
        # The parent's accelerator is the parent's.
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in sys.path),
    }
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with open(request.with_name("rebuild.log"), "w+b") as log:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "keras_tx.export", str(request)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
            pass_fds=[descriptor],
        )
        try:
            code = child.wait()
        finally:
            if child.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
            child.stdin.close()
        if code == 0:
            return
        log.seek(0)
        said = log.read().decode(errors="replace").strip()
    kind = ValueError if code == REFUSED else RuntimeError
    raise kind(
        "Rebuilding the model on the TensorFlow backend failed"
        + (f" (killed by signal {-code})" if code < 0 else "")
        + f". The process said:\n{said}"
    )


def rebuild(request: str) -> None:
    """Does, in a process of the TensorFlow backend, what the file `request` asks for."""
    threading.Thread(target=_die_with_parent, daemon=True).start()
    request = pickle.loads(Path(request).read_bytes())
    from keras_tx.export import artefact

    keras.config.set_floatx(request["floatx"])
    keras.config.set_epsilon(request["epsilon"])
    keras.config.set_image_data_format(request["image_data_format"])
    for module in request["modules"]:
        importlib.import_module(module)
    # Our own parent wrote the file, so a Lambda in it is the user's.
    model = keras.saving.load_model(request["model"], compile=False, safe_mode=False)
    for layer in model._flatten_layers():
        if getattr(layer, "implementation", None) == "fused":  # which TensorFlow has not
            layer.implementation = "auto"
    original = request["fingerprint"]
    if original is not None and not all(
        close(rebuilt, array, request["tolerance"])
        for rebuilt, array in zip(_fingerprint(model), original, strict=True)
    ):
        raise RuntimeError(
            f"{model.name!r}, rebuilt on TensorFlow, does not answer as the original does."
        )
    artefact.write_here(model, Path(request["path"]), max_new_tokens=request["max_new_tokens"])


def _die_with_parent():
    os.read(0, 1)  # ends when the parent, which writes nothing, is gone
    os._exit(1)
