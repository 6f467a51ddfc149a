"""What every model of the library shares."""

import keras
import numpy as np
from keras import ops, tree

from keras_tx.configurable import Configurable
from keras_tx.data import tokenizers
from keras_tx.layers.multi_head_attention import MultiHeadAttention
from keras_tx.models.saved_quantization import SavedQuantization
from keras_tx.training.cross_entropy_training import CrossEntropyTraining


class Model(SavedQuantization, Configurable, CrossEntropyTraining, keras.Model):
    """A Keras model built at construction that owns its loss, metrics and preprocessing.

    A subclass builds every child in its constructor and ends it with `self.finish()`; it says in
    `check_inputs` what input is wrong.
    """

    sizes: dict = {}

    def get_config(self):
        config = super().get_config()
        for name in ("tokenizer", "target_tokenizer"):
            if config.get(name) is not None:  # with its vocabulary, which Keras leaves out
                config[name] = tokenizers.serialize(getattr(self, name))
        return config

    @classmethod
    def from_size(cls, name: str, **changes):
        """A model of a named size with random weights.

        Args:
            name: A key of `sizes`.
            **changes: Constructor arguments that replace or complete those of the size; a
                `block` replaces the size's numbers of a block.
        """
        if name not in cls.sizes:
            raise ValueError(
                f"{cls.__name__} has no size {name!r}. Known: {', '.join(sorted(cls.sizes))}"
            )
        arguments = {**cls.sizes[name], **changes}
        for argument in set(cls._without_effect(arguments)) - set(changes):
            arguments.pop(argument, None)
        return cls(**arguments)

    def finish(self):
        """Marks the model as built; its trackers are made last."""
        self.make_trackers()
        self.build(None)

    def build(self, inputs_shape=None):
        """Every child is built by the constructor."""

    def attention_paths(self) -> dict[str, str]:
        """How each multi-head attention was computed when it was last traced, and why.

        Returns:
            {path of the layer: "tiled: 8192 x 8192 scores a head"}, or "not called yet".
        """
        attentions = (x for x in self._flatten_layers() if isinstance(x, MultiHeadAttention))
        return {x.path: x.path_taken or "not called yet" for x in attentions}

    def check_inputs(self, inputs):
        """Raises ValueError for concrete (numpy) inputs that the model cannot take."""

    def compute_output_spec(self, *args, **kwargs):
        # From `call`, not from a shape: the scores, where asked for, and float32 logits.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def check_targets(self, inputs, targets):
        """Raises ValueError for concrete (numpy) targets that the model's own loss cannot take."""

    def __call__(self, inputs, *args, **kwargs):
        self._check_concrete(inputs)
        return super().__call__(inputs, *args, **kwargs)

    def fit(self, x=None, y=None, *args, **kwargs):
        self._check_data(x, y, kwargs.get("sample_weight"))
        validation = kwargs.get("validation_data")
        if isinstance(validation, (tuple, list)):  # now, not after the first epoch
            self._check_data(*validation)
        return super().fit(x, y, *args, **kwargs)

    def evaluate(self, x=None, y=None, *args, **kwargs):
        self._check_data(x, y, kwargs.get("sample_weight"))
        return super().evaluate(x, y, *args, **kwargs)

    def predict(self, x, *args, **kwargs):
        self._check_data(x)
        return super().predict(x, *args, **kwargs)

    def train_on_batch(self, x, y=None, sample_weight=None, *args, **kwargs):
        self._check_data(x, y, sample_weight)
        return super().train_on_batch(x, y, sample_weight, *args, **kwargs)

    def test_on_batch(self, x, y=None, sample_weight=None, *args, **kwargs):
        self._check_data(x, y, sample_weight)
        return super().test_on_batch(x, y, sample_weight, *args, **kwargs)

    def predict_on_batch(self, x):
        self._check_data(x)
        return super().predict_on_batch(x)

    def _check_data(self, inputs, targets=None, sample_weight=None):
        """Raises ValueError for data in memory that cannot be trained on, before Keras begins."""
        if not self._check_concrete(inputs):
            return
        if not len(tree.flatten(inputs)[0]):  # where Keras fails late, and may lose the weights
            raise ValueError("The inputs must have at least one row. Received: none")
        if targets is None or not self.owns_loss:
            return
        if isinstance(targets, (dict, list, tuple)):
            raise ValueError(
                "The targets must be one array of integers; the model's own loss takes no "
                f"structure of them. Received: {type(targets).__name__}"
            )
        if isinstance(targets, np.ndarray):
            self.check_targets(inputs, targets)
            shape = targets.shape
            if sample_weight is not None and np.shape(sample_weight) not in (shape, shape[:1]):
                raise ValueError(
                    f"`sample_weight` must be {shape[:1]}, a weight for each row, or {shape}, one "
                    f"for each target. Received: shape {np.shape(sample_weight)}"
                )

    def _check_concrete(self, inputs) -> bool:
        """Checks numpy inputs; says whether they are."""
        leaves = tree.flatten(inputs) if isinstance(inputs, (dict, np.ndarray)) else []
        is_numpy = bool(leaves) and all(isinstance(leaf, np.ndarray) for leaf in leaves)
        if is_numpy:
            self.check_inputs(inputs)
        return is_numpy

    def export(
        self,
        filepath,
        format: str = "tf_saved_model",
        verbose=None,
        max_new_tokens: int | None = None,
        **kwargs,
    ):
        """Writes the model at `filepath`; as a SavedModel, with its signatures for a server.

        Args:
            filepath: Where to write.
            format: "tf_saved_model", or another format of `keras.Model.export`, which Keras
                then writes.
            verbose: For other formats, whether Keras prints what it wrote.
            max_new_tokens: As for `keras_tx.publish`.
            **kwargs: For other formats, what Keras takes.
        """
        if format != "tf_saved_model":
            super().export(filepath, format=format, verbose=verbose, **kwargs)
            return
        from keras_tx.export import export

        export(self, filepath, max_new_tokens=max_new_tokens, **kwargs)


def check_ids(name: str, ids, vocabulary_size: int):
    """Raises ValueError unless `ids` is an integer (B, T) array, 0 <= id < vocabulary_size."""
    ids = np.asarray(ids)
    if ids.ndim != 2 or not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(
            f"`{name}` must be integers of shape (batch, length). "
            f"Received: shape {ids.shape}, dtype {ids.dtype}"
        )
    if ids.size and (ids.min() < 0 or ids.max() >= vocabulary_size):
        raise ValueError(
            f"`{name}` must be from 0 to {vocabulary_size - 1} (vocabulary_size={vocabulary_size})."
            f" Received: from {ids.min()} to {ids.max()}. Was it made with another tokenizer?"
        )


def check_targets(targets, shape, num_classes: int):
    """Raises ValueError unless `targets` are integers of this shape, 0 <= target < num_classes."""
    if targets.shape != tuple(shape) or not np.issubdtype(targets.dtype, np.integer):
        raise ValueError(
            f"The targets must be integers of shape {tuple(shape)}, one for each prediction. "
            f"Received: shape {targets.shape}, dtype {targets.dtype}"
        )
    if targets.size and not 0 <= targets.min() <= targets.max() < num_classes:
        raise ValueError(
            f"The targets must be from 0 to {num_classes - 1}, also where their weight is 0. "
            f"Received: from {targets.min()} to {targets.max()}"
        )


def check_length(name: str, shape, max_length: int):
    """Raises ValueError if a known length in `shape` (B, T) is above `max_length`."""
    length = shape[1] if len(shape) == 2 else None
    if isinstance(length, int) and length > max_length:
        raise ValueError(
            f"`{name}` may be at most max_sequence_length={max_length} long. Received: length "
            f"{length}. Shorten it, or build the model with a larger max_sequence_length."
        )


def real_tokens(ids, pad_token_id):
    """Boolean mask like `ids`, True where the id is not padding; None without a pad id."""
    return None if pad_token_id is None else ops.not_equal(ids, pad_token_id)


def check_images(shape, size: tuple[int, int], num_channels: int):
    """Raises ValueError unless `shape` is (B, height, width, channels) of this size."""
    expected, shape = (*size, num_channels), tuple(shape)
    if len(shape) != 4 or shape[1:] != expected:
        raise ValueError(
            f"Images must be (batch, height, width, channels) with {expected}. "
            f"Received: shape {shape}. Resize them, or build the model with another "
            "`image_size` or `num_channels`."
        )


def vocabulary_from(tokenizer, vocabulary_size: int | None) -> int:
    """The vocabulary size given, or the tokenizer's; the head may be larger, never smaller."""
    known = None if tokenizer is None else tokenizers.vocabulary_size(tokenizer)
    if vocabulary_size is None and known is None:
        raise ValueError("Give `vocabulary_size` or a `tokenizer`")
    if vocabulary_size is not None and vocabulary_size < max(known or 0, 1):
        raise ValueError(
            "`vocabulary_size` must be positive and hold all of the tokenizer's "
            f"{known} ids. Received: {vocabulary_size}"
        )
    return int(vocabulary_size or known)  # Keras refuses numpy integers
