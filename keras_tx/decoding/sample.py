from collections.abc import Callable, Sequence

import keras
from keras import ops

from keras_tx.decoding import rules
from keras_tx.decoding.token_by_token import TokenByToken
from keras_tx.ops import sampling_rules
from keras_tx.ops.hashing import uniform


@keras.saving.register_keras_serializable(package="keras_tx")
class Sample(TokenByToken):
    """Draws each token from the model's distribution, made sharper or cut to its better part.

    A row's draws follow from its own seed and place alone, so that they do not depend on the other
    rows, on the backend, or on how often one pauses. Each number may be one for all rows, or one
    for each; None does nothing. In this order:

    Args:
        temperature: Divides the logits. 0 takes the most probable token.
        top_k: Only the so many most probable tokens stay, and those as probable as the last one.
        top_p: Only the fewest most probable tokens that together have this probability stay.
        min_p: Only tokens at least this share as probable as the most probable one stay.
        typical_p: Only the tokens whose information is nearest the expected one stay, the fewest
            that together have this probability.
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
        >>> Sample(0.8, top_p=0.95)
        Sample(temperature=0.8, top_p=0.95)

    Reference:
        Fan et al. 2018, "Hierarchical Neural Story Generation", 5.4 (top-k); Holtzman et al. 2020,
        "The Curious Case of Neural Text Degeneration", Eq. 2 and 3 (top-p); Nguyen et al. 2024,
        "Turning Up the Heat", section 4 (min-p); Meister et al. 2023, "Locally Typical Sampling",
        section 5.
    """

    def __init__(
        self,
        temperature: float | Sequence[float] = 1.0,
        top_k: int | Sequence[int] | None = None,
        top_p: float | Sequence[float] | None = None,
        min_p: float | Sequence[float] | None = None,
        typical_p: float | Sequence[float] | None = None,
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

    def probabilities(self, logits, given, used):
        """What is drawn from, (B, V)."""
        return ops.softmax(rules.apply_filters(logits, given, used), axis=-1)

    def choose(self, logits, step, request, used):
        logits = rules.apply_filters(logits, request.options, used)
        return sampling_rules.draw(logits, uniform(request.seeds, step))
