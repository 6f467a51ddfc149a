"""Runs every signature of a SavedModel as the server does: a graph, a session, no Keras."""

import contextlib
import warnings
from pathlib import Path

import keras
import numpy as np


@contextlib.contextmanager
def session(path: Path):
    """Yields `(signatures, run)` of the SavedModel: `{name: SignatureDef}` and
    `run(name, {key: array}) -> {key: array}`.
    """
    import tensorflow as tf

    config = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
    graph = tf.Graph()
    with contextlib.closing(tf.compat.v1.Session(graph=graph, config=config)) as opened:
        with graph.as_default(), _quiet():
            loaded = tf.compat.v1.saved_model.load(opened, ["serve"], str(path))
        signatures = {
            name: signature
            for name, signature in loaded.signature_def.items()
            if not name.startswith("__")
        }

        def run(name, inputs):
            signature = signatures[name]
            feeds = {signature.inputs[key].name: value for key, value in inputs.items()}
            return opened.run({key: i.name for key, i in signature.outputs.items()}, feeds)

        yield signatures, run


@contextlib.contextmanager
def _quiet():
    """Without the notice that the loader of TensorFlow 1, the one that servers use, is old."""
    import tensorflow as tf

    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("ERROR")
    try:
        yield
    finally:
        logger.setLevel(level)


def verify(path: Path, endpoints) -> None:
    """Raises RuntimeError unless each endpoint answers its sample as the model does."""
    import tensorflow as tf

    # An accelerator rounds the products of float32: both sides are computed where the session is.
    with session(path) as (signatures, run), tf.device("CPU:0"):
        for endpoint in endpoints:
            signature = signatures[endpoint.name]
            for key, info in [*signature.inputs.items(), *signature.outputs.items()]:
                sizes = info.tensor_shape.dim
                if not sizes or sizes[0].size != -1:
                    raise RuntimeError(
                        f"{key!r} of the signature {endpoint.name!r} must have a batch of any size "
                        f"first. Its shape is {[size.size for size in sizes]}."
                    )
            endpoint.check(run(endpoint.name, endpoint.sample))


def verify_keras_export(path: Path, model: keras.Model) -> None:
    """Runs what Keras exported on made-up inputs and compares it with the model."""
    import tensorflow as tf

    with session(path) as (signatures, run), tf.device("CPU:0"):
        signature = signatures["serving_default"]
        feeds = {key: made_up(*_shape_and_dtype(i)) for key, i in signature.inputs.items()}
        arguments = _arguments(model, feeds)
        if arguments is None:
            run("serving_default", feeds)
            return
        try:
            expected = keras.tree.flatten(model(arguments, training=False))
        except Exception as error:
            warnings.warn(
                f"{model.name!r} was exported but not tried out: it does not take made-up inputs "
                f"of shapes { {key: value.shape for key, value in feeds.items()} } ({error}).",
                stacklevel=2,
            )
            return
        answers = list(run("serving_default", feeds).values())
        # Keras names outputs by position, a dict of outputs by its keys: compare as sets of shapes.
        for reference in map(keras.ops.convert_to_numpy, expected):
            same = [a for a in answers if a.shape == reference.shape]
            if not any(close(answer, reference, tolerance(model)) for answer in same):
                raise RuntimeError(
                    f"The exported {model.name!r} does not answer as the model does: no output "
                    f"equals the model's output of shape {reference.shape}."
                )


def _arguments(model, feeds):
    if len(feeds) == 1:
        return next(iter(feeds.values()))
    inputs = getattr(model, "input", None)
    names = [tensor.name for tensor in keras.tree.flatten(inputs)] if inputs is not None else []
    if set(names) != set(feeds):
        return None
    return keras.tree.map_structure(lambda tensor: feeds[tensor.name], inputs)


def _shape_and_dtype(info):
    import tensorflow as tf

    sizes = [dim.size for dim in info.tensor_shape.dim]
    return [None if size == -1 else size for size in sizes], tf.as_dtype(info.dtype).as_numpy_dtype


def made_up(shape, dtype) -> np.ndarray:
    """Numbers of a shape whose batch is 2 and whose other unknown sizes are 8; ids are all 0."""
    shape = [2 if axis == 0 else 8 if size is None else size for axis, size in enumerate(shape)]
    if np.issubdtype(dtype, np.floating):
        return np.random.default_rng(0).standard_normal(shape).astype(dtype)
    return np.full(shape, "" if dtype == np.object_ else 0, dtype)


def tolerance(model: keras.Model) -> float:
    """How far two right computations of the model may lie apart, as a part of the greatest."""
    return 1e-4 if model.dtype_policy.compute_dtype in ("float32", "float64") else 5e-2


def close(answer, reference, tolerance) -> bool:
    """True when nothing is further away than `tolerance * max(1, max|reference|)`."""
    answer, reference = np.asarray(answer), np.asarray(reference)
    if answer.shape != reference.shape:
        return False
    if reference.dtype == np.object_ or not reference.size:
        return bool((answer == reference).all())
    answer, reference = answer.astype(np.float64), reference.astype(np.float64)
    limit = tolerance * max(1.0, np.nanmax(np.abs(reference)))
    return bool(np.allclose(answer, reference, rtol=0, atol=limit, equal_nan=True))
