"""The loss and metrics of a model that predicts one class for each token or row."""

import keras
from keras import ops, tree

from keras_tx.ops.cross_entropy import token_log_likelihood


class CrossEntropyTraining:
    """Mixin for `keras.Model`: mean cross-entropy and accuracy over the real targets.

    Without a loss in `compile`, the model computes its own: the sum of weight * -log p(target)
    divided by the sum of weights, in `fit` and in `evaluate`, whatever the batch size and
    however much padding. Losses that layers add (`add_loss`) are trained on, and are not part
    of the reported `loss`. With a loss in `compile`, Keras' own training is left as it is.
    Metrics given to `compile` are reported beside the model's own, whose names win.
    """

    owns_loss = True  # a model that is not compiled has its own

    def make_trackers(self):
        self.log_loss_tracker = keras.metrics.Mean(name="own_loss")
        self.accuracy_tracker = keras.metrics.Mean(name="own_accuracy")

    def compile(self, optimizer="adamw", loss=None, *args, **kwargs):
        """Keras' `compile`; without a `loss` the model uses its own loss and accuracy."""
        self.owns_loss = loss is None  # Keras keeps the loss of an earlier `compile`
        super().compile(optimizer, loss, *args, **kwargs)

    def fit(
        self, x=None, y=None, batch_size=None, epochs=1, verbose="auto", callbacks=None, **kwargs
    ):
        """Keras' `fit`; a callback that monitors the model's own accuracy takes more as better."""
        if self.owns_loss:  # Keras knows the direction only of what `compile` was given
            for callback in tree.flatten(callbacks):
                own = getattr(callback, "monitor", None) in ("accuracy", "val_accuracy")
                if own and getattr(callback, "mode", None) == "auto":
                    callback.mode = "max"
        return super().fit(x, y, batch_size, epochs, verbose, callbacks, **kwargs)

    def compile_from_config(self, config):
        """Compiles a loaded model as the saved one was; Keras does so for its own `compile`."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built and self.optimizer is not None:
            self.optimizer.build(self.trainable_variables)

    def target_weights(self, inputs, targets):
        """Weights of the targets by themselves, in their shape; padding would be 0."""
        return ops.ones(ops.shape(targets), "float32")

    def log_likelihood(self, y_pred, y):
        """log p(target), and 1.0 where the prediction is right, for what `call` returned."""
        return token_log_likelihood(y_pred, y)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        if not self.owns_loss:
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        if y is None:
            raise ValueError(
                f"{self.name} trains on (inputs, targets), or (inputs, targets, sample_weight). "
                "Received no targets. Pass them, or compile with a loss that needs none."
            )
        weights = self.target_weights(x, y)
        if sample_weight is not None:
            # Of rows or of tokens. TensorFlow forgets the rank once it has met both.
            by_row = (ops.shape(weights)[0], -1)
            sample_weight = ops.reshape(ops.cast(sample_weight, "float32"), by_row)
            weighted = ops.reshape(weights, by_row) * sample_weight
            weights = ops.reshape(weighted, ops.shape(weights))
        log_likelihood, correct = self.log_likelihood(y_pred, y)
        self.log_loss_tracker.update_state(-log_likelihood, weights)
        self.accuracy_tracker.update_state(correct, weights)
        total = ops.sum(weights)
        loss = -ops.sum(log_likelihood * weights) / ops.where(total > 0, total, 1.0)
        for extra in self.losses:
            loss = loss + ops.cast(extra, loss.dtype)
        return loss

    def get_metrics_result(self):
        results = super().get_metrics_result()
        own = {
            "loss": results.pop(self.log_loss_tracker.name),
            "accuracy": results.pop(self.accuracy_tracker.name),
        }
        return {**results, **own} if self.owns_loss else results
