"""Sizes as far as they are known when a function is called or traced."""


def fits(shape, expected, may_be_one: int = 0) -> bool:
    """Whether a shape is the expected one; what is unknown in either fits anything.

    Args:
        shape: Of a tensor.
        expected: What it should be.
        may_be_one: How many of the first dimensions may be 1 instead, to be broadcast.
    """
    if len(shape) != len(expected):
        return False
    return all(
        size == wanted
        or not (isinstance(size, int) and isinstance(wanted, int))
        or (size == 1 and axis < may_be_one)
        for axis, (size, wanted) in enumerate(zip(shape, expected, strict=True))
    )
