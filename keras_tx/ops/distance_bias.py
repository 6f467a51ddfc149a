"""Biases of attention scores that depend on the distance of query and key alone."""

from keras import ops


def toeplitz(vectors, num_rows: int, num_columns: int):
    """A matrix whose diagonals are constant: `out[..., t, s] = vectors[..., t - s + S - 1]`.

    Args:
        vectors: (..., T + S - 1).
        num_rows: T, at least 1.
        num_columns: S, at least 1.

    Returns:
        (..., T, S).
    """
    length = num_rows + num_columns - 1
    leading = ops.shape(vectors)[:-1]
    rows = ops.pad(ops.flip(vectors, axis=-1), [(0, 0)] * len(leading) + [(0, 1)])
    rows = ops.broadcast_to(rows[..., None, :], (*leading, num_rows, length + 1))
    # Read with rows one place shorter, each row begins one place further to the left.
    flat = ops.reshape(rows, (*leading, num_rows * (length + 1)))[..., : num_rows * length]
    return ops.reshape(flat, (*leading, num_rows, length))[..., num_rows - 1 :]


def sum_diagonals(matrix, num_rows: int, num_columns: int):
    """The transpose of `toeplitz` as a linear map: (..., T, S) -> (..., T + S - 1)."""
    length = num_rows + num_columns - 1
    leading = ops.shape(matrix)[:-2]
    widths = [(0, 0)] * len(leading)
    flat = ops.pad(matrix, [*widths, (0, 0), (num_rows - 1, 0)])
    flat = ops.reshape(flat, (*leading, num_rows * length))
    flat = ops.reshape(ops.pad(flat, [*widths, (0, num_rows)]), (*leading, num_rows, length + 1))
    return ops.flip(ops.sum(flat, axis=-2)[..., :-1], axis=-1)


def bias_matrix(table, query_places, num_keys):
    """The bias of every pair.

    Args:
        table: (N, 2 M - 1), of the distances -(M - 1) to M - 1.
        query_places: Integers (B, T); keys stand at 0 to S - 1.
        num_keys: S.

    Returns:
        (B, N, T, S).
    """
    zero = ops.shape(table)[1] // 2
    key_places = ops.arange(num_keys, dtype="int32")
    distance = query_places[:, :, None] - key_places[None, None, :]
    return ops.transpose(ops.take(table, distance + zero, axis=1), (1, 0, 2, 3))
