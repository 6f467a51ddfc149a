"""`publish` and `export`: a model in, a verified SavedModel out, whole or not at all."""

import os
from pathlib import Path

import keras

from keras_tx.export import artefact, workspace

SAVED_MODEL_PARTS = {
    "saved_model.pb",
    "fingerprint.pb",
    "variables",
    "assets",
    "assets.extra",
    "keras_metadata.pb",
}


def publish(
    model: keras.Model, base: str | os.PathLike, *, max_new_tokens: int | None = None
) -> Path:
    """Writes a model as the next version of `base`, where TensorFlow Serving finds it.

    The SavedModel is written beside the versions under a name that servers ignore, checked (only
    operations of the stock server; every signature answers through the loader that the server uses
    and says what the model says), forced onto the disk and renamed to `<base>/<next integer>` in
    one step. A polling server sees a whole version or none, no version is ever overwritten, and
    whatever fails or is killed leaves nothing that counts as a version; its remains go when the
    next call begins. The artefact is the same whatever backend trained the model: off TensorFlow it
    is rebuilt there, in a process of its own.

    Signatures, all with the batch first and `training=False`:

    - a model that generates text (`GPT`, `Seq2Seq`): `serving_default`, `text` -> `text`,
      `token_ids`, `lengths`, `scores`, greedily; `token_ids`, the same from `token_ids` (batch,
      length) and `lengths` (batch,), with `attention_scores` where the model has them. Without a
      tokenizer both take ids.
    - a model of images (`ViT`): `serving_default`, `image_bytes` (PNG, JPEG, GIF or BMP) ->
      `labels`, `label_ids`, `probabilities`; `pixels`, the same from uint8 `pixels`.
    - any other model: what Keras exports.

    A server answers a batch or fails it, so no row can raise: a prompt that leaves no room, or that
    holds unknown ids, gets an empty completion of length 0; bytes that are no image get the label
    "", the id -1 and probabilities of 0. Their neighbours are answered as if alone.

    Args:
        model: A built `keras.Model`.
        base: The folder of the model's versions, made where it is missing.
        max_new_tokens: The most tokens a reply may have, part of the artefact. None is what the
            model's `generate` takes for None. Only for models that generate.

    Returns:
        The path of the new version, `<base>/<integer>`.

    Raises:
        ValueError: If the model cannot be served, or `base` is no place for versions.
        RuntimeError: If the artefact does not answer as the model does, or rebuilding it failed.
    """
    base = _local_path(base, "base")
    artefact.check(model, max_new_tokens)
    if (base / "saved_model.pb").exists():
        raise ValueError(
            f"`base` is the folder that holds the versions of a model, but {str(base)!r} is itself "
            f"a SavedModel. Give its parent, {str(base.parent)!r}, or use `export`."
        )
    _make_folder(base, "base")
    with workspace.workspace(base) as (folder, descriptor):
        finished = folder / "version"
        artefact.write(model, finished, max_new_tokens=max_new_tokens, descriptor=descriptor)
        workspace.sync(finished)
        return workspace.place_as_next_version(finished, base)


def export(
    model: keras.Model, path: str | os.PathLike, *, max_new_tokens: int | None = None
) -> None:
    """Writes the artefact of `publish` exactly at `path`, as `keras.Model.export` does.

    A SavedModel that stands at `path` is replaced once the new one is whole and verified.

    Args:
        model: A built `keras.Model`.
        path: The folder to write. Its parent is made where it is missing.
        max_new_tokens: As in `publish`.

    Raises:
        ValueError: If the model cannot be served, or `path` holds something that is no SavedModel.
        RuntimeError: If the artefact does not answer as the model does, or rebuilding it failed.
    """
    path = _local_path(path, "path")
    path = path.parent.resolve() / path.name
    artefact.check(model, max_new_tokens)
    _make_folder(path.parent, "path's parent")
    workspace.restore(path)
    if path.exists():
        parts = {entry.name for entry in path.iterdir()} if path.is_dir() else None
        if parts is None or parts - SAVED_MODEL_PARTS:
            raise ValueError(
                "`path` must be free, an empty folder, or a SavedModel to replace; "
                f"{str(path)!r} is " + ("a file." if parts is None else f"a folder of {parts}.")
            )
    with workspace.workspace(path.parent) as (folder, descriptor):
        finished = folder / "version"
        artefact.write(model, finished, max_new_tokens=max_new_tokens, descriptor=descriptor)
        workspace.sync(finished)
        workspace.place_exactly(finished, path)


def _local_path(path, name):
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or not text.strip() or "://" in text:
        raise ValueError(f"`{name}` must be the path of a local folder. Received: {path!r}.")
    return Path(text)


def _make_folder(folder, name):
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ValueError(
            f"`{name}` must be a folder, or a place where one can be made. {str(folder)!r} is a "
            "file, or lies below one."
        ) from error
