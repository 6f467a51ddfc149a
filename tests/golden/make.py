"""Writes one small model of each class with its outputs, for later releases to load.

    KERAS_BACKEND=tensorflow python -m tests.golden.make

A file once released is never written again: names and configuration keys are a file format.
"""

import pathlib
import zipfile

import numpy as np

import keras_tx as ktx
from tests.models import tools

FOLDER = pathlib.Path(__file__).parent


def gpt():
    tokenizer = ktx.data.train_tokenizer([], kind="byte")
    model = tools.make_gpt("list", vocabulary_size=256, tokenizer=tokenizer)
    # Large weights would blow the last bit of a float32 up beyond the tolerance.
    return tools.randomize(model, kernel_scale=0.25)


def vit():
    return tools.make_vit(class_names=["nought", "one", "two", "three", "four"], gated=True)


def expected(model):
    """Inputs, outputs and the gradient of the model's own loss."""
    if isinstance(model, ktx.GPT):
        x, y = tools.tokens(2, 7), tools.tokens(2, 7, seed=6)
    else:
        x, y = tools.images(2), np.array([4, 1])
    logs, gradients = tools.gradients(model, x, y)
    values = {"inputs": x, "targets": y, "logits": model.predict(x, verbose=0)}
    values["loss"] = np.float32(logs["loss"])
    values["gradients"] = np.concatenate([g.ravel() for g in gradients]).astype("float32")
    if isinstance(model, ktx.GPT):
        values["text"] = np.array(model.generate("An", max_new_tokens=9))
    return values


def compress(path):
    """Keras stores the parts of its archive as they are, HDF5's empty space included."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, part in parts.items():
            archive.writestr(name, part)


def main():
    for name, make in (("gpt", gpt), ("vit", vit)):
        path = FOLDER / f"{name}.keras"
        model = make()
        model.save(path)
        compress(path)
        np.savez_compressed(path.with_suffix(".npz"), **expected(model))


if __name__ == "__main__":
    main()
