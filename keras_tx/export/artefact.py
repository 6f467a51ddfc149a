"""Writes a model's SavedModel and proves it, on whatever backend the model lives."""

from pathlib import Path

import keras

from keras_tx.export import image, lint, rebuild, text, verify


def check(model: keras.Model, max_new_tokens: int | None) -> None:
    """Raises ValueError, before anything is written, for a model that cannot be exported."""
    if not isinstance(model, keras.Model):
        raise ValueError(f"`model` must be a keras.Model. Received: {model!r}.")
    if not model.built:
        raise ValueError(
            f"{model.name!r} is not built and has no weights yet. Call it once on a batch, or "
            "build it, before it is exported."
        )
    if text.generates(model):
        text.check(model, max_new_tokens)
    elif max_new_tokens is not None:
        raise ValueError(
            f"`max_new_tokens` is for models that generate text; {type(model).__name__} does not. "
            "Leave it out."
        )


def write(model: keras.Model, path: Path, *, max_new_tokens: int | None, descriptor: int) -> None:
    """Writes the verified artefact at `path`, whose parent is a workspace held by `descriptor`."""
    if keras.backend.backend() == "tensorflow":
        write_here(model, path, max_new_tokens=max_new_tokens)
    else:
        rebuild.write_elsewhere(model, path, max_new_tokens=max_new_tokens, descriptor=descriptor)


def write_here(model: keras.Model, path: Path, *, max_new_tokens: int | None) -> None:
    """Writes the verified artefact from a model of the TensorFlow backend."""
    if text.generates(model):
        endpoints = text.endpoints(model, max_new_tokens)
    elif image.classifies(model):
        endpoints = image.endpoints(model)
    else:
        # The class's own method: the model's may be the one that called us.
        keras.Model.export(model, str(path), format="tf_saved_model", verbose=False)
        lint.lint(path)
        verify.verify_keras_export(path, model)
        return
    # The archive finds the variables in the traced functions, but no tables of tokenizers.
    archive = keras.export.ExportArchive()
    for resource in text.resources(model):
        archive.track(resource)
    for endpoint in endpoints:
        archive.add_endpoint(endpoint.name, endpoint.function, list(endpoint.inputs.values()))
    archive.write_out(str(path), verbose=False)
    lint.lint(path)
    verify.verify(path, endpoints)
