"""Sizes rounded up, so that few shapes are ever compiled."""


def bucket(size: int, least: int = 8) -> int:
    """The smallest power of two from `size` up, at least `least`."""
    rounded = least
    while rounded < size:
        rounded *= 2
    return rounded
