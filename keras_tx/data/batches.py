"""From a plan of batches to a `tf.data.Dataset` whose order is a function of (seed, epoch)."""

import numpy as np


class Order:
    """Which epoch a training data set delivers next; `batches(epoch)` is a pure function."""

    def __init__(self, batches):
        self.batches = batches
        self.epoch = 0


def batched(batches, num_batches: int, signature):
    """A `tf.data.Dataset` of known cardinality over NumPy batches.

    Args:
        batches: Function of the epoch, giving the batches `(inputs, targets, sample_weight)`.
        num_batches: How many there are, the same in every epoch.
        signature: The `tf.TensorSpec` of each part.

    The epoch advances when a pass has handed out its last batch, not when one begins: Keras looks
    at the first batch of a data set before it trains, on some backends.
    """
    import tensorflow as tf

    order = Order(batches)

    def generate():
        yield from order.batches(order.epoch)

    def count():
        epoch = order.epoch
        for number in range(num_batches):
            if number == num_batches - 1:
                order.epoch = epoch + 1
            yield number

    prepared = tf.data.Dataset.from_generator(generate, output_signature=signature).prefetch(2)
    # Read in step with the consumer, so it must stay after the prefetching.
    counted = tf.data.Dataset.from_generator(count, output_signature=tf.TensorSpec((), tf.int64))
    dataset = tf.data.Dataset.zip(prepared, counted).map(lambda batch, _: batch)
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    options.deterministic = True
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(num_batches))
    dataset = dataset.with_options(options)
    dataset.keras_tx_order = order
    return dataset


def set_epoch(dataset, epoch: int):
    """Makes the next pass over a training data set deliver this epoch's order.

    A fresh data set begins with epoch 0 and goes on by itself; this is for resuming.

    Args:
        dataset: What `language_modeling`, `text_pairs` or `image_classification` returned,
            not something mapped from it.
        epoch: From 0.
    """
    order = getattr(dataset, "keras_tx_order", None)
    if order is None or not isinstance(epoch, int) or epoch < 0:
        raise ValueError(
            "Expected a data set made by keras_tx.data, and an epoch from 0 up. "
            f"Received {dataset!r} and epoch={epoch!r}."
        )
    order.epoch = epoch


def random(seed: int, epoch: int):
    """The random numbers of an epoch."""
    return np.random.default_rng((seed, epoch))


def pad_rows(array, rows: int, value=0):
    """Appends rows of `value` until there are `rows`."""
    missing = rows - len(array)
    if missing <= 0:
        return array
    return np.concatenate([array, np.full((missing, *array.shape[1:]), value, array.dtype)])


def check_positive(**arguments):
    for name, value in arguments.items():
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
            raise ValueError(f"Expected {name} to be a positive whole number. Received {value!r}.")


def check_seed(seed):
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise ValueError(f"Expected seed to be a whole number from 0 up. Received {seed!r}.")
