"""Checks of positions that are known."""

from keras import ops


def check_positions(positions, limit: int, because: str):
    """Raises ValueError for a position outside 0 ... limit - 1; passes what is still traced."""
    known = _known(positions)
    if known is not None and known.size and not 0 <= known.min() <= known.max() < limit:
        raise ValueError(
            f"`positions` must be from 0 to {limit - 1} ({because}). "
            f"Received: from {known.min()} to {known.max()}"
        )


def _known(x):
    """x as a numpy array, or None where a backend has no values yet."""
    try:
        return ops.convert_to_numpy(x)
    except (NotImplementedError, TypeError):  # TensorFlow and PyTorch; JAX
        return None
