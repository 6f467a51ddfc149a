import numpy as np
from keras import ops

from keras_tx.ops.cache import write


def test_write_puts_each_row_at_its_own_place_and_leaves_the_rest():
    random = np.random.default_rng(0)
    cache = random.standard_normal((3, 2, 11, 5)).astype("float32")
    new = random.standard_normal((3, 2, 4, 5)).astype("float32")
    index = np.array([0, 7, 3])
    expected = cache.copy()
    for row, start in enumerate(index):
        expected[row, :, start : start + 4] = new[row]
    got = write(ops.convert_to_tensor(cache), ops.convert_to_tensor(new), index)
    np.testing.assert_array_equal(ops.convert_to_numpy(got), expected)
