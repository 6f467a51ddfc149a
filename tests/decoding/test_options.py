"""The parameters of strategies, checked and as arrays."""

import numpy as np
import pytest

from keras_tx.decoding import options


def test_arrays():
    found = options.arrays(
        {
            "temperature": None,
            "top_k": np.array([1, 2, 3]),
            "top_p": 0.5,
            "min_new_tokens": np.int64(4),
            "banned_tokens": [5, np.int32(6)],
            "forced_tokens": [[None, 2], [], list(range(9))],
            "length_penalty": [0, 1.5, -1],
            "early_stopping": [True, False, True],
        },
        3,
        vocabulary_size=9,
    )
    assert {name: (x.dtype.name, x.shape) for name, x in found.items()} == {
        "temperature": ("float32", (3,)),
        "top_k": ("int32", (3,)),
        "top_p": ("float32", (3,)),
        "min_new_tokens": ("int32", (3,)),
        "banned_tokens": ("int32", (3, 8)),
        "forced_tokens": ("int32", (3, 16)),
        "length_penalty": ("float32", (3,)),
        "early_stopping": ("bool", (3,)),
    }
    assert found["temperature"].tolist() == [1, 1, 1] and found["top_k"].tolist() == [1, 2, 3]
    assert found["banned_tokens"][2].tolist() == [5, 6, *[-1] * 6]
    assert found["forced_tokens"][0].tolist() == [-1, 2, *[-1] * 14]
    assert found["forced_tokens"][2].tolist() == [*range(9), *[-1] * 7]
    everything = options.arrays(dict.fromkeys((*options.NUMBERS, *options.TOKENS)), 2)
    assert all(len(array) == 2 for array in everything.values())
    assert {name for name, array in everything.items() if array.any()} == {
        name for name, option in options.NUMBERS.items() if option.neutral
    } | set(options.TOKENS)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("temperature", -0.5, "`temperature` must be a number from 0 up, a list with one for each"),
        ("temperature", float("nan"), "Received: nan"),
        ("temperature", float("inf"), "Received: inf"),
        ("temperature", 1e39, "Received: 1e\\+39"),
        ("temperature", True, "Received: True"),
        ("temperature", "hot", "Received: 'hot'"),
        ("temperature", [1.0, [1.0]], "Received: \\[1.0, \\[1.0\\]\\]"),
        ("top_k", 5.0, "`top_k` must be an integer from 0 up"),
        ("top_k", [3, -1], "Received: \\[3, -1\\]"),
        ("top_k", np.array([True]), "Received: \\[True\\]"),
        ("top_k", 2**31, "`top_k` must be an integer"),
        ("top_p", 1.5, "`top_p` must be a number from 0 to 1"),
        ("min_p", -0.1, "`min_p` must be a number from 0 to 1"),
        ("typical_p", 0, "`typical_p` must be a number above 0, up to 1"),
        ("repetition_penalty", 0, "`repetition_penalty` must be a number above 0"),
        ("repetition_penalty", 1e-38, "`repetition_penalty` must be a number above 0"),
        ("repetition_penalty", 1e38, "`repetition_penalty` must be .* from 1e-20 to 1e20"),
        ("frequency_penalty", -1e38, "`frequency_penalty` must be a number from -1e20 to 1e20"),
        ("presence_penalty", 1e38, "`presence_penalty` must be a number from -1e20 to 1e20"),
        ("early_stopping", 1, "`early_stopping` must be True or False"),
        ("banned_tokens", 3, "`banned_tokens` must be a list of ids from 0 up, or a list of such"),
        ("banned_tokens", [None], "Received: \\[None\\]"),
        ("banned_tokens", [-1], "Received: \\[-1\\]"),
        ("banned_tokens", [True], "Received: \\[True\\]"),
        ("banned_tokens", [[1], 2], "Received: \\[\\[1\\], 2\\]"),
        ("forced_tokens", ["a"], "from 0 up, None where the choice is free, or a list of such"),
    ],
)
def test_values_out_of_range(name, value, message):
    with pytest.raises(ValueError, match=message):
        options.check({name: value})
    with pytest.raises(ValueError, match=message):
        options.arrays({name: value}, 2)


def test_none_in_a_list_does_nothing_in_its_row():
    found = options.arrays({"top_k": [5, None], "temperature": [None, 0.5], "top_p": (None, 1)}, 2)
    assert {name: array.tolist() for name, array in found.items()} == {
        "top_k": [5, 0],
        "temperature": [1, 0.5],
        "top_p": [1, 1],
    }


def test_values_that_do_not_fit_the_prompts():
    with pytest.raises(ValueError, match="one for each of the 3. Received: 2 values"):
        options.arrays({"top_k": [1, 2]}, 3)
    with pytest.raises(ValueError, match="for each of the 3. Received: 2 lists"):
        options.arrays({"banned_tokens": [[1], [2]]}, 3)
    with pytest.raises(ValueError, match="ids from 0 to 6, .* Received: \\[7\\]"):
        options.arrays({"banned_tokens": [7]}, 3, vocabulary_size=7)
