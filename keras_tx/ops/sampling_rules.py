"""What is done to the logits of the next token before one is chosen, and the choice.

Each function takes logits (B, V) float32, which may hold -inf, and parameters with one value for
each row, so that one compilation serves all of them. Tokens that are removed get -inf. Rows whose
parameter is the neutral value come out exactly as they came.

`tokens` (B, L) int32 is each row's text so far at consecutive places, -1 everywhere else; `step`
(B,) int32 is how many of them are new.
"""

from keras import ops

from keras_tx import kernels

REMOVED = float("-inf")
LARGEST = 2**31 - 1


def penalize(logits, tokens, step, repetition, frequency, presence):
    """The three penalties below, in this order, which count the tokens once."""
    in_text, new = _text_counts(logits, tokens, step)
    return _penalize_new(_penalize_text(logits, in_text, repetition), new, frequency, presence)


def repetition_penalty(logits, tokens, penalty):
    """Divides positive logits of tokens in the text by the penalty, multiplies the negative ones.

    1 is neutral.

    Reference:
        Keskar et al. 2019, "CTRL", section 4.1. As in transformers, whose product makes negative
        logits smaller too.
    """
    return _penalize_text(logits, _counts(tokens, logits), penalty)


def frequency_penalty(logits, tokens, step, penalty):
    """Takes the penalty off a token's logit for each time it is in the new text; 0 is neutral.

    Reference:
        OpenAI, API reference, "Frequency and presence penalties": c[j] counts how often token j was
        sampled, so the prompt does not count.
    """
    _, new = _text_counts(logits, tokens, step)
    return _penalize_new(logits, new, penalty, ops.zeros_like(penalty))


def presence_penalty(logits, tokens, step, penalty):
    """Takes the penalty off a token's logit if it is in the new text; 0 is neutral.

    Reference: as for `frequency_penalty`.
    """
    _, new = _text_counts(logits, tokens, step)
    return _penalize_new(logits, new, ops.zeros_like(penalty), penalty)


def no_repeat_ngrams(logits, tokens, size, longest=None):
    """Removes tokens that would end a run of `size` tokens that is in the text already.

    0 is neutral; with 1 no token stands twice in the text.

    Args:
        logits: (B, V).
        tokens: int32 (B, L).
        size: int32 (B,).
        longest: The largest size, if it is known.

    Reference:
        Paulus et al. 2017, "A Deep Reinforced Model for Abstractive Summarization", section 2.5.
    """
    length = ops.shape(tokens)[1]
    places = ops.arange(length, dtype="int32")[None, :]
    longest = ops.max(size) if longest is None else longest
    size, last = size[:, None], _last(tokens)

    def compare(distance, matches):
        """Whether the token that far before each place is the one that far before the next."""
        before = _at(tokens, places - distance)
        wanted = _at(tokens, last + 1 - distance)  # in the text for as long as `before` may be
        is_same = ops.equal(before, wanted)
        return ops.logical_and(matches, ops.logical_or(is_same, distance >= size))

    matches = ops.logical_and(tokens >= 0, size > 0)
    is_known = isinstance(longest, int) and isinstance(length, int)
    stop = (min if is_known else ops.minimum)(longest, length + 1)  # no longer run is in the text
    return ban(logits, ops.where(kernels.serial_loop(1, stop, compare, matches), tokens, -1))


def hold_back(logits, step, least, token_id: int):
    """Removes one token while the new text is shorter than `least` tokens; 0 is neutral."""
    return ban(logits, held_back(step, least, token_id))


def held_back(step, least, token_id: int):
    """The id that `hold_back` removes, int32 (B, 1), -1 for none."""
    return ops.where(step < least, token_id, -1)[:, None]


def ban(logits, ids):
    """Removes tokens.

    Args:
        logits: (B, V).
        ids: int32 (B, M), -1 for none.
    """
    return ops.where(_counts(ids, logits) > 0, REMOVED, logits)


def force(logits, ids, step):
    """Leaves nothing but the token that the new text must have at this place.

    A token that was removed is possible again, with logit 0.

    Args:
        logits: (B, V).
        ids: int32 (B, F), the first tokens of the new text, -1 where the choice is free.
        step: int32 (B,).
    """
    wanted = _at(ids, ops.cast(step, "int32")[:, None])
    logits_if_wanted = ops.where(logits > REMOVED, logits, 0.0)
    forced = ops.where(ops.equal(_vocabulary(logits), wanted), logits_if_wanted, REMOVED)
    return ops.where(wanted >= 0, forced, logits)


def temperature(logits, temperature):
    """Divides the logits; 1 is neutral, and 0 leaves the first of the greatest alone.

    From the greatest logit down, which changes no probability and cannot overflow.

    Reference:
        Ackley et al. 1985, "A Learning Algorithm for Boltzmann Machines", section 2.
    """
    temperature = temperature[:, None]
    distances, ids = _below_the_greatest(logits), _vocabulary(logits)
    # The first of the greatest; an argmax takes XLA much longer.
    first = ops.min(ops.where(distances > 0, LARGEST, ids), axis=-1, keepdims=True)
    greedy = ops.where(ops.equal(ids, first), logits, REMOVED)
    divided = -distances / ops.where(temperature > 0, temperature, 1.0)
    changed = ops.where(temperature > 0, divided, greedy)
    return ops.where(ops.equal(temperature, 1.0), logits, changed)


def top_k(logits, k):
    """Leaves the k greatest logits, and all equal to the last of them; 0 is neutral.

    Reference:
        Fan et al. 2018, "Hierarchical Neural Story Generation", section 5.4.
    """
    stays = _nearest(_below_the_greatest(logits), None, k)
    return _keep(logits, stays, k > 0)


def top_p(logits, p):
    """Leaves the most probable tokens, the fewest that together have probability p.

    All as probable as the last of them stay too. 1 is neutral; 0 leaves the most probable.

    Reference:
        Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration", Eq. 2 and 3.
    """
    stays = _nearest(_below_the_greatest(logits), ops.softmax(logits, axis=-1), p)
    return _keep(logits, stays, p < 1)


def min_p(logits, p):
    """Leaves tokens at least p times as probable as the most probable one; 0 is neutral.

    Reference:
        Nguyen et al. 2024, "Turning Up the Heat: Min-p Sampling for Creative and Coherent LLM
        Outputs", section 4.
    """
    return _keep(logits, _below_the_greatest(logits) <= -ops.log(p[:, None]), p > 0)


def typical_p(logits, p):
    """Leaves the tokens whose information is nearest the entropy, the fewest of probability p.

    All as near as the last of them stay too. 1 is neutral.

    Reference:
        Meister et al. 2023, "Locally Typical Sampling", Eq. 9 and 10.
    """
    log_probabilities = ops.log_softmax(logits, axis=-1)
    probabilities = ops.exp(log_probabilities)
    information = ops.where(probabilities > 0, -probabilities * log_probabilities, 0.0)
    entropy = ops.sum(information, axis=-1, keepdims=True)
    stays = _nearest(ops.abs(log_probabilities + entropy), probabilities, p)
    return _keep(logits, stays, p < 1)


def draw(logits, uniform):
    """A token of each row with the probabilities softmax(logits), by inverting their sums.

    Never a token of probability 0, as long as a row has another.

    Args:
        logits: (B, V).
        uniform: float32 (B,), numbers in [0, 1].

    Returns:
        int32 (B,).
    """
    # Sums of sums: a long running sum would lose the small ones.
    vocabulary = logits.shape[-1]
    size = _block_size(vocabulary)
    missing = -vocabulary % size
    weights = ops.pad(ops.softmax(logits, axis=-1), ((0, 0), (0, missing)))
    weights = ops.reshape(weights, (-1, (vocabulary + missing) // size, size))
    of_blocks = ops.sum(weights, axis=-1)
    rest = uniform[:, None] * ops.sum(of_blocks, axis=-1, keepdims=True)
    block, rest = _reach(of_blocks, rest)
    inside = ops.take_along_axis(weights, block[..., None], axis=1)[:, 0]
    token, _ = _reach(inside, rest)
    return (block * size + token)[:, 0]


def _reach(weights, goal):
    """The first place where the sum of the weights (B, N) passes the goal (B, 1), or else the last
    of weight above 0; and what is left of the goal before it."""
    count = weights.shape[1]
    places = ops.arange(count, dtype="int32")[None, :]
    sums = ops.cumsum(weights, axis=-1)
    has_weight = weights > 0
    is_reached = ops.logical_and(has_weight, sums > goal)
    first = ops.min(ops.where(is_reached, places, count), axis=-1, keepdims=True)
    last = ops.max(ops.where(has_weight, places, 0), axis=-1, keepdims=True)
    place = ops.minimum(first, last)
    return place, ops.maximum(goal - _at(sums, place - 1, 0.0), 0.0)


def _block_size(vocabulary: int) -> int:
    """About the square root."""
    size = 8
    while size * size < vocabulary:
        size *= 2
    return size


def _keep(logits, stays, is_used):
    """Removes what does not stay, in rows where the rule is used."""
    removed = ops.logical_and(ops.logical_not(stays), is_used[:, None])
    return ops.where(removed, REMOVED, logits)


def _below_the_greatest(logits):
    """How far each logit is below its row's greatest: from 0 to inf, what a softmax sees."""
    distance = ops.max(logits, axis=-1, keepdims=True) - logits
    return ops.where(logits > REMOVED, distance, float("inf"))


def _nearest(distances, weights, enough):
    """Which distances are at most t, the least t for which what is kept weighs enough.

    t is found bit by bit, the highest first: floats from 0 up are in the order of their bits. That
    is exact, and faster than sorting a large vocabulary, under XLA by far.

    Args:
        distances: (B, V) from 0 to inf.
        weights: (B, V) from 0 up, or None to count.
        enough: (B,).

    Returns:
        Boolean (B, V), at least one true in a row. Equal distances are kept or not together.
    """
    enough = ops.maximum(ops.cast(enough, "float32"), 1e-30)[:, None]
    one = ops.cast(1, "int32")

    def set_bit(index, bits):
        """t is at least `more` if all below that is too little."""
        more = bits + ops.left_shift(one, 30 - index)
        below = distances < ops.view(more, "float32")
        if weights is None:
            weighs = ops.cast(below, "float32")
        else:
            weighs = ops.where(below, weights, 0.0)
        return ops.where(ops.sum(weighs, axis=-1, keepdims=True) < enough, more, bits)

    bits = kernels.serial_loop(0, 31, set_bit, ops.zeros_like(distances[:, :1], dtype="int32"))
    infinity = 0x7F800000  # above it are the bits of what is no number
    return distances <= ops.view(ops.minimum(bits, infinity), "float32")


def _counts(ids, logits):
    """How often each token of the vocabulary is among the ids (A, L), (A, V); others count none."""
    ids, vocabulary = ops.cast(ids, "int32"), logits.shape[-1]
    counted = ops.logical_and(ids >= 0, ids < vocabulary)
    size = ops.shape(ids)
    rows = ops.broadcast_to(ops.arange(size[0], dtype="int32")[:, None], size)
    places = ops.reshape(ops.stack([rows, ops.where(counted, ids, 0)], axis=-1), (-1, 2))
    return ops.scatter_update(
        ops.zeros((size[0], vocabulary), logits.dtype),
        places,
        ops.reshape(ops.cast(counted, logits.dtype), (-1,)),
        reduction="add",
    )


def _text_counts(logits, tokens, step):
    """How often each token of the vocabulary is in the text, and in the new text, each (B, V)."""
    new = ops.where(_is_new(tokens, step), tokens, -1)
    counts = _counts(ops.concatenate([tokens, new], axis=0), logits)
    return ops.split(counts, 2, axis=0)


def _penalize_text(logits, counts, penalty):
    penalty = penalty[:, None]
    penalized = ops.where(logits < 0, logits * penalty, logits / penalty)
    return ops.where(ops.logical_and(counts > 0, penalty != 1), penalized, logits)


def _penalize_new(logits, counts, frequency, presence):
    is_present = ops.cast(counts > 0, logits.dtype)
    return logits - frequency[:, None] * counts - presence[:, None] * is_present


def _is_new(tokens, step):
    """Which places hold the newest `step` tokens."""
    places = ops.arange(ops.shape(tokens)[1], dtype="int32")[None, :]
    return ops.logical_and(tokens >= 0, places > _last(tokens) - ops.cast(step, "int32")[:, None])


def _last(tokens):
    """The place of each row's newest token, (B, 1); -1 if there is none."""
    places = ops.arange(ops.shape(tokens)[1], dtype="int32")[None, :]
    return ops.max(ops.where(tokens >= 0, places, -1), axis=1, keepdims=True)


def _at(values, places, otherwise=-1):
    """The values (B, L) at places (B, N), or (1, N) for all rows; `otherwise` outside."""
    length = ops.shape(values)[1]
    places = ops.broadcast_to(places, (ops.shape(values)[0], ops.shape(places)[1]))
    inside = ops.logical_and(places >= 0, places < length)
    found = ops.take_along_axis(values, ops.clip(places, 0, length - 1), axis=1)
    return ops.where(inside, found, otherwise)


def _vocabulary(logits):
    """All ids, (1, V)."""
    return ops.arange(logits.shape[-1], dtype="int32")[None, :]
