"""Tensors are assigned all or not at all, and the error says what does not fit."""

import numpy as np
import pytest

from keras_tx import weights
from tests.models.tools import assert_close, tokens

V, T, D, F = 13, 17, 6, 5
CONFIG = {
    "model_type": "gpt2",
    "vocab_size": V,
    "n_positions": T,
    "n_embd": D,
    "n_layer": 2,
    "n_head": 3,
    "n_inner": F,
}
BLOCK = {
    "ln_1.weight": (D,),
    "ln_1.bias": (D,),
    "attn.c_attn.weight": (D, 3 * D),
    "attn.c_attn.bias": (3 * D,),
    "attn.c_proj.weight": (D, D),
    "attn.c_proj.bias": (D,),
    "ln_2.weight": (D,),
    "ln_2.bias": (D,),
    "mlp.c_fc.weight": (D, F),
    "mlp.c_fc.bias": (F,),
    "mlp.c_proj.weight": (F, D),
    "mlp.c_proj.bias": (D,),
}
SHAPES = {
    "wte.weight": (V, D),
    "wpe.weight": (T, D),
    **{f"h.{index}.{name}": shape for index in range(2) for name, shape in BLOCK.items()},
    "ln_f.weight": (D,),
    "ln_f.bias": (D,),
}


@pytest.fixture
def state():
    generator = np.random.default_rng(3)
    return {
        f"transformer.{name}": generator.standard_normal(shape).astype("float32")
        for name, shape in SHAPES.items()
    }


@pytest.fixture(scope="module")
def model():
    return weights.build(CONFIG)


def test_every_weight_is_assigned(model, state):
    weights.assign(model, state, CONFIG)
    sums = sorted(float(np.sum(weight, dtype="float64")) for weight in model.get_weights())
    assert_close(sums, sorted(float(np.sum(x, dtype="float64")) for x in state.values()))


def test_other_ways_to_write_the_same(model, state):
    weights.assign(model, state, CONFIG)
    expected = model(tokens(2, 7))
    short = {name.removeprefix("transformer."): value for name, value in state.items()}
    short["h.0.attn.bias"] = np.tril(np.ones((1, 1, T, T)))  # the causal mask, in old files
    short["lm_head.weight"] = short["wte.weight"].copy()
    other = weights.build(CONFIG)
    weights.assign(other, short, CONFIG)
    assert_close(other(tokens(2, 7)), expected)


def test_half_precision_is_widened(model, state):
    halves = {name: value.astype("float16") for name, value in state.items()}
    weights.assign(model, halves, CONFIG)
    table = model.token_embedding.embeddings
    assert table.dtype == "float32"
    assert_close(table, halves["transformer.wte.weight"].astype("float32"))


def without(state):
    del state["transformer.h.1.ln_2.bias"]


def reshaped(state):
    state["transformer.h.0.mlp.c_fc.weight"] = state["transformer.h.0.mlp.c_fc.weight"].T


def one_more(state):
    state["transformer.h.2.ln_1.weight"] = np.zeros(D)


def untied(state):
    state["lm_head.weight"] = 1 + state["transformer.wte.weight"]


def many_missing(state):
    for name in [name for name in state if ".h.1." in name]:
        del state[name]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without, r"missing: transformer\.h\.1\.ln_2\.bias \(6,\)"),
        (reshaped, r"h\.0\.mlp\.c_fc\.weight: expected \(6, 5\), got \(5, 6\)"),
        (one_more, r"not used: transformer\.h\.2\.ln_1\.weight"),
        (untied, r"lm_head\.weight differs from transformer\.wte\.weight"),
        (many_missing, "and 2 more"),
    ],
)
def test_nothing_is_assigned_of_what_does_not_fit(model, state, change, message):
    weights.assign(model, state, CONFIG)
    before = model.get_weights()
    other = {name: value + 1 for name, value in state.items()}
    change(other)
    with pytest.raises(ValueError, match=message):
        weights.assign(model, other, CONFIG)
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))


def test_a_model_of_another_configuration(state):
    deeper = weights.build({**CONFIG, "n_layer": 3})
    with pytest.raises(ValueError, match=r"missing: transformer\.h\.2\.ln_1\.weight"):
        weights.assign(deeper, state, CONFIG)


def test_a_weight_that_no_tensor_is_for(state):
    normalized = weights.build(CONFIG, embedding_normalization=True)
    with pytest.raises(ValueError, match="nothing for .*embedding_norm"):
        weights.assign(normalized, state, CONFIG)


def test_an_unknown_family(model, state):
    with pytest.raises(ValueError, match="Received: 'rwkv'"):
        weights.assign(model, state, {"model_type": "rwkv"})
