"""Models out as SavedModels that TensorFlow Serving serves as they are."""

from keras_tx.export.publish import export, publish

__all__ = ["export", "publish"]
