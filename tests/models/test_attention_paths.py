"""How a model's attention is computed, as it tells and as its graph shows."""

import numpy as np
import pytest
from keras import ops

import keras_tx as ktx
from keras_tx import kernels
from keras_tx.ops.attention import attention
from keras_tx.ops.attention_mask import AttentionMask
from keras_tx.ops.scoring import Scoring

LENGTH = 1024  # the first one of which the scores of a head are many


@pytest.fixture(scope="module")
def gpt():
    return ktx.GPT(13, 2, 4, 2, max_sequence_length=LENGTH)


def test_a_model_tells_the_path_of_each_attention_and_why(gpt):
    assert list(gpt.attention_paths()) == ["block_0/attention", "block_1/attention"]
    few, many = np.ones((1, 17), "int32"), np.ones((1, LENGTH), "int32")
    gpt(few)
    path = (
        "fused: the backend's own" if kernels.HAS_FUSED_ATTENTION else "dense: few scores (17 x 17"
    )
    assert all(taken.startswith(path) for taken in gpt.attention_paths().values())
    gpt(few, return_attention_scores=True)
    assert set(gpt.attention_paths().values()) == {"dense: the weights are wanted"}
    gpt(many)
    if not kernels.HAS_FUSED_ATTENTION:
        assert set(gpt.attention_paths().values()) == {"tiled: 1024 x 1024 scores a head"}


def test_before_it_is_called_a_model_says_so():
    vit = ktx.ViT(3, 1, 4, 2, image_size=4, patch_size=2)
    assert vit.attention_paths() == {"block_0/attention": "not called yet"}


def largest_in_jax(function, *arguments):
    """The most elements of any value that is computed on the way."""
    import jax

    def largest(jaxpr):
        sizes = [0]
        for equation in jaxpr.eqns:
            sizes += [np.prod(v.aval.shape, dtype=int) for v in equation.outvars]
            sizes += [largest(inner) for inner in jax.core.jaxprs_in_params(equation.params)]
        return max(sizes)

    return largest(jax.make_jaxpr(function)(*arguments).jaxpr)


def largest_in_tensorflow(function, *arguments):
    import tensorflow as tf

    graph = tf.function(function, autograph=False).get_concrete_function(*arguments).graph
    library = [f.graph for f in graph._functions.values() if hasattr(f, "graph")]
    sizes = [0]
    for part in [graph, *library]:
        for operation in part.get_operations():
            shapes = [output.shape for output in operation.outputs]
            sizes += [s.num_elements() or 0 for s in shapes if s.rank is not None]
    return max(sizes)


def largest_in_torch(function, *arguments):
    from torch.utils._python_dispatch import TorchDispatchMode

    sizes = [0]

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, called, types, arguments=(), keywords=None):
            result = called(*arguments, **(keywords or {}))
            for x in result if isinstance(result, (tuple, list)) else [result]:
                sizes.append(x.numel() if hasattr(x, "numel") else 0)
            return result

    with Watch():
        function(*arguments)
    return max(sizes)


def test_no_matrix_of_all_scores_is_ever_computed(backend):
    """Forward and backward, masks and all: nothing has as many elements as T x S."""
    from tests.ops.differentiation import GRADIENTS

    mask = AttentionMask(
        causal=True,
        padding=ops.ones((1, LENGTH), "bool"),
        query_segments=ops.zeros((1, LENGTH), "int32"),
        key_segments=ops.zeros((1, LENGTH), "int32"),
    )
    scoring = Scoring(soft_cap=3.0)
    inputs = {
        name: ops.convert_to_tensor(np.ones((1, 1, LENGTH, 4), "float32"))
        for name in ("query", "key", "value")
    }

    def run(upstream):
        return GRADIENTS[backend](
            lambda query, key, value: attention(query, key, value, mask, scoring), inputs, upstream
        )

    largest = {
        "jax": largest_in_jax,
        "tensorflow": largest_in_tensorflow,
        "torch": largest_in_torch,
    }[backend]
    count = largest(run, ops.ones((1, 1, LENGTH, 4)))
    assert 256 * 256 <= count < LENGTH * LENGTH // 4


@pytest.mark.parametrize("jit_compile", [False, True], ids=["graph", "jit"])
@pytest.mark.parametrize("length", [0, 7, LENGTH + 5])
def test_a_length_that_is_not_known_when_tensorflow_traces(length, jit_compile, backend):
    if backend != "tensorflow":
        pytest.skip("only TensorFlow traces without knowing its sizes")
    import tensorflow as tf

    layer = ktx.layers.MultiHeadSelfAttention(
        2, causal=True, soft_cap=3.0, position=ktx.layers.RelativePositionBias()
    )
    layer.build((None, None, 4))
    unknown = tf.TensorSpec((None, None, 4), "float32")

    @tf.function(autograph=False, input_signature=[unknown], jit_compile=jit_compile)
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = layer(x)
        return output, tape.gradient(output, x)

    x = np.random.default_rng(0).standard_normal((1, length, 4)).astype("float32")
    output, slope = gradient(x)
    assert layer.path_taken.startswith("tiled: a length is not known yet")
    with tf.GradientTape() as tape:
        known = tf.constant(x)
        tape.watch(known)
        expected = layer(known)
    name = "dense" if length <= 7 else "tiled"
    assert layer.path_taken.startswith(name)
    for got, wanted in ((output, expected), (slope, tape.gradient(expected, known))):
        limit = 1e-5 * max(1.0, np.abs(wanted).max(initial=0.0))
        np.testing.assert_allclose(got, wanted, rtol=0, atol=limit)
