import keras
import numpy as np
import pytest
from keras import ops

from keras_tx.layers import PatchEmbedding
from tests.contract.running import assert_close, call


@pytest.mark.parametrize("patch_size", [3, (2, 5)], ids=str)
def test_is_a_convolution_with_a_stride_of_its_kernel(patch_size):
    rows, columns = (patch_size,) * 2 if isinstance(patch_size, int) else patch_size
    images = np.random.default_rng(0).standard_normal((2, 7 * rows, 3 * columns, 2))
    images = images.astype("float32")
    layer = PatchEmbedding(patch_size, 11)
    layer.build(images.shape)
    layer.projection.bias.assign(np.arange(11) / 7)
    convolution = keras.layers.Conv2D(
        11, (rows, columns), strides=(rows, columns), data_format="channels_last"
    )
    convolution.build(images.shape)
    kernel = ops.convert_to_numpy(layer.projection.kernel).reshape(rows, columns, 2, 11)
    convolution.set_weights([kernel, np.arange(11) / 7])
    expected = ops.convert_to_numpy(convolution(images)).reshape(2, 21, 11)
    assert_close(call(layer, {"x": images}), expected)
    assert layer.grid(images.shape) == (7, 3)
