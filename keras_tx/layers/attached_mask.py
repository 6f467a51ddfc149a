"""The padding mask that Keras attached to a tensor."""

import keras


class _AttachedMask(keras.layers.Layer):
    """Gives the mask that Keras attached to its input; None when there is none.

    Keras hands masks to calls that name them `mask`; on tracers of JAX it keeps them in a table of
    its own, where no attribute shows them.
    """

    def call(self, x, mask=None):
        return mask

    def compute_mask(self, x, previous_mask):
        return None  # a mask has none


_attached_mask = _AttachedMask(autocast=False, name="attached_mask")


def resolve_mask(x, padding_mask=None):
    """The explicit padding mask, or else the implicit one that Keras attached to `x`."""
    if padding_mask is not None:
        return padding_mask
    if isinstance(x, keras.KerasTensor):
        return getattr(x, "_keras_mask", None)
    return _attached_mask(x)
