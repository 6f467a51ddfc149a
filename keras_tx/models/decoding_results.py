"""What goes into decoding and comes out, as users see it: seeds, lists for arrays, one result."""

import random
from collections.abc import Sequence

import numpy as np

from keras_tx.decoding.options import plain
from keras_tx.integers import is_integer


def row_seeds(seed: int | Sequence[int] | None, rows: int) -> np.ndarray:
    """int32 (rows,): those given, `seed + k`, or others at each call."""
    if seed is None:  # `keras.utils.set_random_seed` sets Python's numbers, too
        seed = random.getrandbits(31)
    seeds = plain(seed)
    if is_integer(seeds):
        seeds = [seeds + row for row in range(rows)]
    is_list = isinstance(seeds, (list, tuple)) and len(seeds) == rows
    if not is_list or not all(is_integer(number) for number in seeds):
        raise ValueError(
            f"`seed` must be an integer, or one for each of the {rows} prompts. Received: {seed!r}"
        )
    # Of a larger number the lowest bits.
    return np.array([int(number) % 2**32 for number in seeds], "uint32").astype("int32")


def lists(token_ids, lengths) -> list:
    """Arrays (..., length) and (...) as lists, each as long as it says."""
    if lengths.ndim > 1:
        return [lists(*several) for several in zip(token_ids, lengths, strict=True)]
    return [row[:n].tolist() for row, n in zip(token_ids, lengths, strict=True)]


def cut(texts: list, stops) -> list:
    """Texts, or lists of texts, before the first stop in each."""
    return [cut(text, stops) if isinstance(text, list) else stops.cut(text) for text in texts]


def joined(results: list[dict]) -> dict:
    """The results of several batches as one; arrays grow to the largest of them."""
    if not results:
        return {"token_ids": [], "lengths": np.zeros(0, "int32"), "scores": np.zeros(0, "float32")}
    return {name: _joined([result[name] for result in results]) for name in results[0]}


def _joined(parts):
    if isinstance(parts[0], list):
        return [row for part in parts for row in part]
    shape = np.max([part.shape for part in parts], axis=0)
    grown = [
        np.pad(
            part, [(0, 0), *[(0, n - m) for n, m in zip(shape[1:], part.shape[1:], strict=True)]]
        )
        for part in parts
    ]
    return np.concatenate(grown)
