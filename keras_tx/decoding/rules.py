"""What the parameters of strategies make of logits, in the running program.

What no row uses is behind a condition and costs next to nothing, so that one compilation serves
every combination.
"""

import functools

from keras import ops

from keras_tx import kernels
from keras_tx.decoding.options import FILTERS, NOBODY, NUMBERS, PENALTIES, RULES, TOKENS
from keras_tx.ops import sampling_rules


def in_use(options: dict) -> dict:
    """Which options any row uses: for `apply_rules` and `apply_filters`.

    Before the loop, so that it is computed once, and known where the loop is traced.

    Returns:
        {name of a filter: boolean scalar}, `rules`, whether any of the rules is used, and
        `longest_run`, the largest `no_repeat_ngram_size`.
    """
    is_used = {}
    for name in (*RULES, *FILTERS):
        if name in options:
            neutral = NOBODY if name in TOKENS else NUMBERS[name].neutral
            is_used[name] = ops.any(ops.not_equal(options[name], neutral))
    used = {name: kernels.known(is_used[name]) for name in FILTERS if name in is_used}
    rules = [is_used[name] for name in RULES if name in is_used]
    if rules:
        used["rules"] = kernels.known(functools.reduce(ops.logical_or, rules))
    if "no_repeat_ngram_size" in options:
        used["longest_run"] = kernels.known(ops.max(options["no_repeat_ngram_size"]))
    return used


def apply_rules(logits, text, step, options, used, end_token_id, rules=()):
    """What the text so far and the place make of the logits.

    A rule that would leave nothing of a row does nothing to it: bans count more than repetitions.

    Args:
        logits: float32 (B, V).
        text: A function without arguments that gives the tokens (B, L), see `sampling_rules`;
            called where a rule may need them.
        step: int32 (B,), how many tokens are new.
        options: {name: (B, ...)}; a missing one does nothing.
        used: `in_use(options)`.
        end_token_id: An integer, or None.
        rules: Functions `(logits, tokens, step) -> logits` applied after the others.

    Returns:
        float32 (B, V).
    """
    names = [name for name in RULES if name in options]
    if end_token_id is None and "min_new_tokens" in names:
        names.remove("min_new_tokens")  # there is no end to hold back

    def ruled():
        tokens, result = text(), logits
        if any(name in names for name in PENALTIES):
            penalties = [_value(options, name, step) for name in PENALTIES]
            result = sampling_rules.penalize(result, tokens, step, *penalties)
        bans = []
        if "banned_tokens" in names:
            bans.append(options["banned_tokens"])
        if "min_new_tokens" in names:
            least = options["min_new_tokens"]
            bans.append(sampling_rules.held_back(step, least, end_token_id))
        if bans:
            result = _unless_nothing_is_left(
                sampling_rules.ban(result, ops.concatenate(bans, axis=1)), result
            )
        if "no_repeat_ngram_size" in names:
            repeated = sampling_rules.no_repeat_ngrams(
                result, tokens, options["no_repeat_ngram_size"], used["longest_run"]
            )
            result = _unless_nothing_is_left(repeated, result)
        if "forced_tokens" in names:
            result = sampling_rules.force(result, options["forced_tokens"], step)
        for rule in rules:
            own = _checked(rule(result, tokens, step), rule, logits)
            result = _unless_nothing_is_left(own, result)
        return result

    if rules:
        return ruled()
    if not names:
        return logits
    # One condition for all of them: more take longer to compile than they save.
    return ops.cond(used["rules"], ruled, lambda: logits)


def apply_filters(logits, options, used):
    """Removes improbable tokens; the most probable one of a row always stays.

    Args, returns: as for `apply_rules`.
    """
    for name in FILTERS:
        if name in options:
            logits = _where_used(used[name], getattr(sampling_rules, name), logits, options[name])
    return logits


def _unless_nothing_is_left(ruled, logits):
    """Row by row."""
    is_left = ops.any(ruled > sampling_rules.REMOVED, axis=-1, keepdims=True)
    return ops.where(is_left, ruled, logits)


def _checked(own, rule, logits):
    """What a rule of one's own returned, if it is like the logits that it was given."""
    shape = getattr(own, "shape", ())
    if len(shape) != 2 or shape[-1] != logits.shape[-1]:
        received = tuple(shape) if hasattr(own, "shape") else type(own).__name__
        raise ValueError(
            f"A rule must return logits of the shape that it is given, {tuple(logits.shape)}. "
            f"Received of {rule!r}: {received}"
        )
    return ops.cast(own, logits.dtype)


def _where_used(is_used, rule, logits, value):
    return ops.cond(is_used, lambda: rule(logits, value), lambda: logits)


def _value(options, name, like):
    """An option (B,), neutral if there is none."""
    if name in options:
        return options[name]
    return ops.full_like(ops.cast(like, "float32"), NUMBERS[name].neutral)
