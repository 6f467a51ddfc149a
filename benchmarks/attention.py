"""Attention, forward and backward, against Keras' layer and PyTorch's kernel.

    python benchmarks/attention.py
    python benchmarks/attention.py --only training

Cases: causal self-attention of 8192 tokens, whole and in a window of 256; memory from 4096 to 32768
tokens; one layer at training sizes. Batch 1, 4 heads of 64, float32, but where a case says more.
Added memory is the peak over the process before its first call, compilation included (the
compiler was started by a product of 2 x 2).
"""

import harness

HEADS, DIM = 4, 64


def subjects():
    long, window = "8192 causal", "8192 causal, window 256"
    rows = [
        harness.Subject(long, "PyTorch SDPA", "torch", {"kind": "sdpa", "length": 8192}),
        harness.Subject(long, "Keras, TensorFlow", "tensorflow", {"kind": "keras", "length": 8192}),
        harness.Subject(long, "Keras, JAX", "jax", {"kind": "keras", "length": 8192}),
    ]
    forms = [
        ("TensorFlow graph", "tensorflow", False, 1 / 2.5, 1.4, 0.25),
        ("TensorFlow jit", "tensorflow", True, 1 / 2.5, 1.4, 0.25),
        ("JAX", "jax", True, 1 / 5, 1.5, 0.45),
    ]
    for name, backend, jit, of_keras, of_sdpa, _ in forms:
        options = {"length": 8192, "jit": jit}
        layer = {f"Keras, {name.split()[0]}": of_keras}
        rows += [
            harness.Subject(long, f"ours, {name}", backend, options, {"PyTorch SDPA": of_sdpa}),
            harness.Subject(
                long, f"our layer, {name}", backend, {"kind": "layer", **options}, layer
            ),
        ]
    rows.append(harness.Subject(window, "PyTorch SDPA", "torch", {"kind": "sdpa", "length": 8192}))
    for name, backend, jit, _, _, target in forms:
        options = {"length": 8192, "jit": jit, "window": 256}
        rows.append(
            harness.Subject(window, f"ours, {name}", backend, options, {"PyTorch SDPA": target})
        )
    for length in (4096, 8192, 16384, 32768):
        for name, backend, jit, _, _, _ in forms:
            options = {"length": length, "jit": jit}
            rows.append(harness.Subject(f"memory, {length}", f"ours, {name}", backend, options))
    training = "training: batch 8, 256 tokens, layer of 256"
    for name, backend, jit in (
        ("TensorFlow graph", "tensorflow", False),
        ("TensorFlow jit", "tensorflow", True),
        ("JAX", "jax", True),
        ("PyTorch", "torch", False),
    ):
        options = {"length": 256, "batch": 8, "jit": jit}
        rows += [
            harness.Subject(training, f"Keras, {name}", backend, {"kind": "keras", **options}),
            harness.Subject(
                training,
                f"our layer, {name}",
                backend,
                {"kind": "layer", **options},
                {f"Keras, {name}": 1.0},
            ),
        ]
    return rows


def measure(subject, quick):
    options = {"kind": "ours", "batch": 1, "window": None, "jit": False, **subject.options}
    length = options["length"] // 64 if quick else options["length"]
    run = prepared(subject.backend, length, options)
    repeats = 15 if length <= 1024 else 3 if length < 16384 else 1
    return harness.timed(run, repeats)


def prepared(backend, length, options):
    """A call of no arguments that computes outputs and gradients, and waits for them."""
    import numpy as np

    random, batch = np.random.default_rng(0), options["batch"]
    if options["kind"] in ("ours", "sdpa"):
        shape = (batch, HEADS, length, DIM)
        arrays = [random.standard_normal(shape).astype("float32") for _ in range(4)]
        function, weights = core(options), []
    else:
        shape = (batch, length, HEADS * DIM)
        arrays = [random.standard_normal(shape).astype("float32") for _ in range(2)]
        function, weights = layer(options)
    *inputs, upstream = arrays
    return {"tensorflow": tensorflow_run, "jax": jax_run, "torch": torch_run}[backend](
        function, weights, inputs, upstream, options["jit"]
    )


def core(options):
    if options["kind"] == "sdpa":
        import torch

        return lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True
        )
    from keras_tx.ops.attention import attention
    from keras_tx.ops.attention_mask import AttentionMask

    mask = AttentionMask(causal=True, window=options["window"])
    return lambda q, k, v: attention(q, k, v, mask)


def layer(options):
    import keras

    import keras_tx as ktx

    width = HEADS * DIM
    if options["kind"] == "keras":
        made = keras.layers.MultiHeadAttention(HEADS, DIM)
        made.build((None, None, width), (None, None, width))
        return lambda x: made(x, x, use_causal_mask=True), made.trainable_variables
    made = ktx.layers.MultiHeadSelfAttention(HEADS, causal=True)
    made.build((None, None, width))
    return made, made.trainable_variables


def tensorflow_run(function, weights, inputs, upstream, jit):
    import tensorflow as tf

    weights = [w.value for w in weights]
    tf.function(lambda x: x @ x, jit_compile=jit)(tf.eye(2))  # starts the compiler

    @tf.function(jit_compile=jit, autograph=False)
    def step(inputs, upstream):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            output = function(*inputs)
        return output, tape.gradient(output, [*inputs, *weights], output_gradients=upstream)

    inputs, upstream = [tf.constant(x) for x in inputs], tf.constant(upstream)
    return lambda: [x[..., :1, :1].numpy() for x in step(inputs, upstream)[1][: len(inputs)]]


def jax_run(function, weights, inputs, upstream, jit):
    import jax
    import keras

    jax.block_until_ready(jax.jit(lambda x: x @ x)(jax.numpy.eye(2)))  # starts the compiler

    def pure(inputs, values):
        with keras.StatelessScope(state_mapping=list(zip(weights, values, strict=True))):
            return function(*inputs)

    @jax.jit
    def step(inputs, values, upstream):
        output, pull = jax.vjp(pure, inputs, values)
        return output, pull(upstream)

    inputs = [jax.numpy.asarray(x) for x in inputs]
    values, upstream = [w.value for w in weights], jax.numpy.asarray(upstream)
    return lambda: jax.block_until_ready(step(inputs, values, upstream))


def torch_run(function, weights, inputs, upstream, jit):
    import torch

    inputs = [torch.tensor(x, requires_grad=True) for x in inputs]
    weights = [w.value for w in weights]
    upstream = torch.tensor(upstream)
    return lambda: torch.autograd.grad(function(*inputs), [*inputs, *weights], upstream)


if __name__ == "__main__":
    harness.main(subjects(), measure, __file__, __doc__.split("\n")[0])
