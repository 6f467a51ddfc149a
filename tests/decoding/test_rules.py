"""What one compiled program makes of the parameters of strategies."""

import keras
import numpy as np
import pytest
from keras import ops, tree

from keras_tx import kernels
from keras_tx.decoding import options, rules
from keras_tx.ops import sampling_rules

INFINITY = float("inf")
V, L, END = 13, 11, 12
TEXT = [7, 3, 7, 3, 7]  # of which the last two are new
NEUTRAL = dict.fromkeys((*options.RULES, *options.FILTERS))
LOGITS = np.arange(V, dtype="float32") / 10


def left(*ids):
    return np.where(np.isin(np.arange(V), ids), LOGITS, -INFINITY)


def without(*ids):
    return np.where(np.isin(np.arange(V), ids), -INFINITY, LOGITS)


def changed(**logits):
    return np.array([logits.get(f"t{i}", x) for i, x in enumerate(LOGITS)], "float32")


# {name: (a value, what becomes of LOGITS)}
EFFECTS = {
    "repetition_penalty": (2.0, changed(t3=0.15, t7=0.35)),
    "frequency_penalty": (0.5, changed(t3=0.3 - 0.5, t7=0.7 - 0.5)),
    "presence_penalty": (0.25, changed(t3=0.3 - 0.25, t7=0.7 - 0.25)),
    "no_repeat_ngram_size": (2, without(3)),
    "banned_tokens": ([5, 9], without(5, 9)),
    "min_new_tokens": (3, without(END)),
    "forced_tokens": ([4, None, 6], left(6)),
    "temperature": (0.5, 2 * (LOGITS - LOGITS[-1])),
    "top_k": (3, left(10, 11, 12)),
    "top_p": (0.15, left(11, 12)),
    "min_p": (0.85, left(11, 12)),
    "typical_p": (0.06, left(7)),
}


class Program:
    """All rules and filters inside a loop, compiled as the loop of decoding is."""

    def __init__(self, jit=False, end_token_id=END, own=()):
        self.traces = 0

        def function(logits, tokens, step, values):
            self.traces += 1
            used = rules.in_use(values)

            def body(index, _):
                ruled = rules.apply_rules(
                    logits, lambda: tokens, step, values, used, end_token_id, own
                )
                return index + 1, rules.apply_filters(ruled, values, used)

            start = (ops.cast(0, "int32"), logits)
            return ops.while_loop(lambda index, _: index < 2, body, start)[1]

        if jit:
            import tensorflow as tf

            self.function = tf.function(function, autograph=False, jit_compile=True)
        else:
            self.function = kernels.compiled(function, [])

    def __call__(self, values, rows, logits=None):
        tokens = np.full((rows, L), -1, "int32")
        for row in range(rows):
            tokens[row, row : row + len(TEXT)] = TEXT
        logits = np.tile(LOGITS, (rows, 1)) if logits is None else np.array(logits, "float32")
        given = (logits, tokens, np.full(rows, 2, "int32"))
        arrays = options.arrays(values, rows, V)
        given, arrays = tree.map_structure(lambda x: filled_up(x, 3), (given, arrays))
        return ops.convert_to_numpy(self.function(*given, arrays))[:rows]


def filled_up(array, rows):
    """One batch size for all, as the caller does: the last row again and again."""
    padding = [(0, rows - len(array)), *[(0, 0)] * (array.ndim - 1)]
    return ops.convert_to_tensor(np.pad(array, padding, mode="edge"))


@pytest.fixture(scope="module")
def program():
    return Program()


def each(name):
    """{option: a value for each of three rows}, the second row's the only one that acts."""
    value = EFFECTS[name][0]
    if name in options.TOKENS:
        return {**NEUTRAL, name: [[], value, []]}
    neutral = options.NUMBERS[name].neutral
    return {**NEUTRAL, name: [neutral, value, neutral]}


@pytest.mark.parametrize("name", EFFECTS)
def test_each_option_acts_in_its_row_alone(program, name):
    found = program(each(name), 3)
    np.testing.assert_array_equal(found[[0, 2]], [LOGITS, LOGITS])
    np.testing.assert_allclose(found[1], EFFECTS[name][1], atol=1e-6)
    everywhere = program({**NEUTRAL, name: EFFECTS[name][0]}, 3)
    np.testing.assert_array_equal(everywhere, [found[1]] * 3)


def test_one_compilation_serves_all_values(program, backend):
    values = {name: value for name, (value, _) in EFFECTS.items()}
    program(values, 3)
    program(NEUTRAL, 3)
    assert program.traces == 1 or backend == "torch", program.traces


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="the other backends have one way of compiling"
)
def test_with_xla_and_without_the_same(program):
    compiled = Program(jit=True)
    for name in EFFECTS:
        np.testing.assert_allclose(compiled(each(name), 3), program(each(name), 3), rtol=1e-6)
    assert compiled.traces == 1


def test_order(program):
    # The penalties act before the bans, a forced token is stronger than both, and what is filtered
    # is what the temperature left.
    given = {"banned_tokens": [[6], [6]], "forced_tokens": [[None, None, 6], []]}
    found = program({**NEUTRAL, **given, "temperature": 0.1, "top_p": 0.6}, 2)
    assert [np.flatnonzero(row > -INFINITY).tolist() for row in found] == [[6], [12]]
    found = program({**NEUTRAL, "top_k": 2, "min_p": 0.95, "temperature": [1.0, 9.0]}, 2)
    assert [np.flatnonzero(row > -INFINITY).tolist() for row in found] == [[12], [11, 12]]


def test_a_rule_that_would_leave_nothing_does_nothing(program):
    values = {**NEUTRAL, "banned_tokens": [list(range(V)), list(range(1, V))]}
    np.testing.assert_allclose(program(values, 2), [LOGITS, left(0)])
    # A ban counts more than a repetition: of 3 and 7, both in the text, one is banned.
    others = [token for token in range(V) if token not in (3, 7)]
    values = {**NEUTRAL, "banned_tokens": [*others, 7], "no_repeat_ngram_size": 1}
    np.testing.assert_allclose(program(values, 1), [left(3)])
    # So does one in which nothing was.
    nothing = np.full((2, V), -INFINITY)
    np.testing.assert_array_equal(program({**NEUTRAL, "banned_tokens": [1]}, 2, nothing), nothing)


def test_rules_of_ones_own_come_last():
    def last_is_likely(logits, tokens, step):
        assert tokens.shape[-1] == L
        last = ops.max(ops.where(tokens >= 0, ops.arange(L), -1), axis=1, keepdims=True)
        token = ops.take_along_axis(tokens, last, axis=1)
        bonus = ops.where(ops.equal(ops.arange(V), token), 1.0, 0.0)
        return ops.where(ops.cast(step, "int32")[:, None] > 1, logits + bonus, logits)

    def nothing(logits, tokens, step):
        return ops.full_like(logits, -INFINITY)

    found = Program(own=[last_is_likely])({"banned_tokens": [5]}, 2)
    expected = np.where(np.arange(V) == 7, LOGITS + 1, without(5))
    np.testing.assert_allclose(found, [expected] * 2)
    found = Program(own=[nothing])({}, 2)
    np.testing.assert_array_equal(found, [LOGITS] * 2)


@pytest.mark.parametrize(
    ("rule", "received"),
    [
        (lambda logits, tokens, step: logits[:, 1:], r"\(\d, 12\)"),
        (lambda logits, tokens, step: logits[0], r"\(13,\)"),
        (lambda logits, tokens, step: None, "NoneType"),
    ],
)
def test_a_rule_that_returns_no_logits(rule, received):
    logits, zeros = ops.convert_to_tensor(LOGITS[None]), ops.zeros((1, 1), "int32")
    with pytest.raises(ValueError, match=rf"the shape that it is given, .*: {received}"):
        rules.apply_rules(logits, lambda: zeros, zeros[0], {}, {}, END, [rule])


def test_the_largest_penalties_leave_numbers(program):
    for name, values in (
        ("repetition_penalty", [1e-20, 1e20]),
        ("frequency_penalty", [-1e20, 1e20]),
        ("presence_penalty", [-1e20, 1e20]),
    ):
        assert np.isfinite(program({**NEUTRAL, name: values}, 2)).all()


def test_what_is_missing_does_nothing_and_no_end_is_held_back():
    found = Program(end_token_id=None)({"min_new_tokens": 9, "top_k": 1}, 2)
    np.testing.assert_array_equal(found, [left(12)] * 2)
    np.testing.assert_array_equal(Program()({}, 1), [LOGITS])


def test_without_rules_the_text_is_not_made():
    logits = ops.convert_to_tensor(LOGITS[None])
    assert rules.apply_rules(logits, None, None, {}, {}, END) is logits


def test_temperature_0_draws_what_greedy_takes(program):
    logits = np.random.default_rng(0).normal(size=(3, V))
    found = program({**NEUTRAL, "temperature": 0.0, "top_p": 0.5, "top_k": 4}, 3, logits)
    drawn = sampling_rules.draw(ops.convert_to_tensor(found), ops.convert_to_tensor([0, 0.5, 1.0]))
    assert ops.convert_to_numpy(drawn).tolist() == logits.argmax(1).tolist()


def test_every_option_has_a_place():
    assert set(options.RULES) | set(options.FILTERS) == set(EFFECTS)
    numbers = set(options.NUMBERS) - {"length_penalty", "early_stopping"}
    assert numbers | set(options.TOKENS) == set(EFFECTS)
