"""What only a backend has; each name is found in the module of the backend in use."""

import keras

if keras.backend.backend() == "tensorflow":
    from keras_tx.kernels.tensorflow import (
        HAS_FUSED_ATTENTION,
        MANY_SCORES,
        compiled,
        fused_attention,
        known,
        products_of_few,
        put,
        repeat_while,
        row,
        rows,
        serial_loop,
        settled,
        stacked,
        tracing,
        updated,
        with_gradient,
    )
elif keras.backend.backend() == "jax":
    from keras_tx.kernels.jax import (
        HAS_FUSED_ATTENTION,
        MANY_SCORES,
        compiled,
        fused_attention,
        known,
        products_of_few,
        put,
        repeat_while,
        row,
        rows,
        serial_loop,
        settled,
        stacked,
        tracing,
        updated,
        with_gradient,
    )
elif keras.backend.backend() == "torch":
    from keras_tx.kernels.torch import (
        HAS_FUSED_ATTENTION,
        MANY_SCORES,
        compiled,
        fused_attention,
        known,
        products_of_few,
        put,
        repeat_while,
        row,
        rows,
        serial_loop,
        settled,
        stacked,
        tracing,
        updated,
        with_gradient,
    )
else:
    raise ValueError(
        "keras_tx runs on the tensorflow, jax and torch backends. "
        f"Received: KERAS_BACKEND={keras.backend.backend()}"
    )

__all__ = [
    "HAS_FUSED_ATTENTION",
    "MANY_SCORES",
    "compiled",
    "fused_attention",
    "known",
    "products_of_few",
    "put",
    "repeat_while",
    "row",
    "rows",
    "serial_loop",
    "settled",
    "stacked",
    "tracing",
    "updated",
    "with_gradient",
]
