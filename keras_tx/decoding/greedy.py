from collections.abc import Callable, Sequence

import keras
from keras import ops

from keras_tx.decoding.token_by_token import TokenByToken


@keras.saving.register_keras_serializable(package="keras_tx")
class Greedy(TokenByToken):
    """Takes the most probable token at every step.

    Each number may be one for all rows, or one for each; None does nothing.

    Args:
        repetition_penalty: Divides the positive logits of tokens that the text, prompt included,
            has already, and multiplies the negative ones. 1 does nothing.
        frequency_penalty: Taken off a token's logit for each time it is in the new text.
        presence_penalty: Taken off a token's logit if it is in the new text.
        no_repeat_ngram_size: No so many tokens in a row stand twice in the text. 0 does nothing.
        min_new_tokens: Before so many, the end token is not chosen.
        banned_tokens: Ids that are never chosen; for each row its own as a list of lists.
        forced_tokens: Ids that the new text begins with, None where the choice is free; for each
            row its own as a list of lists.
        rules: Functions `(logits (B, V), tokens (B, L), step (B,)) -> logits` of your own, applied
            after the others: pure `keras.ops`. `tokens` are the text so far at consecutive places,
            -1 elsewhere; `step` counts the new ones.

    Raises:
        ValueError: If a number is out of its range.

    Example:
        >>> Greedy(repetition_penalty=1.2)
        Greedy(repetition_penalty=1.2)

    Reference:
        Keskar et al. 2019, "CTRL", section 4.1 (repetition penalty); Paulus et al. 2017, "A Deep
        Reinforced Model for Abstractive Summarization", section 2.5 (n-grams).
    """

    def __init__(
        self,
        *,
        repetition_penalty: float | Sequence[float] | None = None,
        frequency_penalty: float | Sequence[float] | None = None,
        presence_penalty: float | Sequence[float] | None = None,
        no_repeat_ngram_size: int | Sequence[int] | None = None,
        min_new_tokens: int | Sequence[int] | None = None,
        banned_tokens: Sequence | None = None,
        forced_tokens: Sequence | None = None,
        rules: Sequence[Callable] = (),
    ):
        self._store(locals())

    def probabilities(self, logits, options, used):
        """All of it for the most probable token: (B, V)."""
        best = ops.argmax(logits, axis=-1, keepdims=True)
        return ops.cast(ops.equal(ops.arange(logits.shape[-1]), best), logits.dtype)

    def choose(self, logits, step, request, used):
        return ops.cast(ops.argmax(logits, axis=-1), "int32")
