import numpy as np
import pytest
from keras import ops

from keras_tx import kernels
from keras_tx.ops.cache import Slots, refill, slots_for, write

RANDOM = np.random.default_rng(0)


def numbers(*shape):
    return RANDOM.standard_normal(shape).astype("float32")


def call(function, *arguments, is_compiled=False, jit_compile=False):
    arguments = [ops.convert_to_tensor(x) for x in arguments]
    if is_compiled:
        function = kernels.compiled(function, [], jit_compile=jit_compile)
    return ops.convert_to_numpy(function(*arguments))


@pytest.mark.parametrize("jit_compile", [None, False, True])
def test_write_puts_each_row_at_its_own_place_and_leaves_the_rest(jit_compile):
    """Also in a compiled function, where memory may be used again."""
    cache, new, index = numbers(3, 2, 11, 5), numbers(3, 2, 4, 5), np.array([0, 7, 3], "int32")
    expected = 2 * cache
    for row, start in enumerate(index):
        expected[row, :, start : start + 4] = new[row]
    how = {"is_compiled": jit_compile is not None, "jit_compile": bool(jit_compile)}
    got = call(lambda cache, new, index: write(2 * cache, new, index), cache, new, index, **how)
    np.testing.assert_array_equal(got, expected)


def kept(capacity, window, num_global, slack, newest):
    """{slot: position} by writing position after position."""
    slots = slots_for(capacity, window, num_global, slack)
    found = {}
    for position in range(newest + 1):
        found[int(slots.of(np.int32(position)))] = position
    return slots, found


@pytest.mark.parametrize("newest", [-1, 0, 2, 3, 7, 8, 30])
@pytest.mark.parametrize("num_global", [0, 3])
@pytest.mark.parametrize("slack", [0, 4])
def test_slots_say_which_position_they_keep(newest, num_global, slack):
    slots, found = kept(100, 5, num_global, slack, newest)
    assert slots.size == num_global + 5 + max(slack, 1) - 1
    said = ops.convert_to_numpy(slots.positions(ops.convert_to_tensor([newest], "int32")))[0]
    assert {slot: at for slot, at in enumerate(said.tolist()) if at >= 0} == found
    # What a window at the next position, or one taken back, may still see is all there.
    needed = [*range(num_global), *range(max(0, newest - max(slack, 1) - 3), newest + 1)]
    assert {at for at in needed if at <= newest} <= set(found.values())


def test_slots_are_no_more_than_a_text_needs():
    assert slots_for(7, 5, 3) == Slots(7, True, 3)
    assert slots_for(2, 5, 3) == Slots(4, True, 3)
    assert slots_for(7, None) == Slots(7)


@pytest.mark.parametrize("start", [0, 6])
def test_refill_keeps_the_newest_of_each_row(start):
    slots, count = Slots(8, True, 3), np.array([0, 2, 9, 16], "int32")
    cache, new = numbers(4, 2, 8, 5), numbers(4, 2, 16, 5)
    expected = cache.copy()
    for row, many in enumerate(count):
        for index in range(many):
            expected[row, :, int(slots.of(np.int32(start + index)))] = new[row, :, index]
    got = call(
        lambda cache, new, count: refill(
            cache, new, slots, ops.full((1,), start, dtype="int32"), count
        ),
        *(cache, new, count),
    )
    np.testing.assert_array_equal(got, expected)


def test_products_of_few_are_products():
    query, key = numbers(3, 2, 4, 5), numbers(3, 2, 7, 5)
    got = call(kernels.products_of_few, query, key)
    np.testing.assert_allclose(got, query @ key.swapaxes(-1, -2), rtol=1e-5, atol=1e-6)
