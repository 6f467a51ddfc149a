import keras
from keras import ops

from keras_tx import kernels
from keras_tx.decoding import rules
from keras_tx.decoding.greedy import Greedy
from keras_tx.decoding.progress import advance
from keras_tx.decoding.sample import Sample
from keras_tx.decoding.strategy import Strategy
from keras_tx.integers import positive_integer
from keras_tx.ops import sampling_rules
from keras_tx.ops.hashing import uniform

NAMED = {"greedy": Greedy, "sample": Sample}
# At each place of a text three numbers are drawn that have nothing to do with each other.
GUESSED, TAKEN, DRAWN = 0, 1, 2


@keras.saving.register_keras_serializable(package="keras_tx")
class Speculative(Strategy):
    """Lets a small model guess some tokens, and the large one read all the guesses at once.

    The draft gives guesses d_i from its distributions q_i, the model gives p_i in one reading of
    all. Guess after guess is taken with probability `min(1, p_i(d_i) / q_i(d_i))`; in place of the
    first that is not, or behind the last, stands a token drawn from `max(p_i - q_i, 0)`, or p_i.
    What comes out is distributed as without the draft; greedily, it is the same text. It is faster
    only where the draft is much cheaper than the model and often right.

    Args:
        draft: A model of the same vocabulary, with `start`, `step` and `rewind`, as `GPT`. A
            configuration holds no weights of it.
        num_draft_tokens: How many tokens are guessed at a time, M.
        strategy: "greedy", "sample", a `Greedy` or a `Sample`: what p and q are made of.

    Returns of the loop:
        As for every strategy, and int32 (B,) `drafted_tokens`, how many guesses were read, and
        `accepted_tokens`, how many of them were taken.

    Raises:
        ValueError: If a number is out of its range, or a model cannot take back what it has read.

    Reference:
        Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding",
        Algorithm 1.
    """

    def __init__(
        self,
        draft: keras.Model,
        num_draft_tokens: int = 4,
        *,
        strategy: str | Strategy = "greedy",
    ):
        if isinstance(strategy, str) and strategy in NAMED:
            strategy = NAMED[strategy]()
        if not isinstance(strategy, (Greedy, Sample)):
            raise ValueError(
                '`strategy` must be "greedy", "sample", a `Greedy` or a `Sample`. '
                f"Received: {strategy!r}"
            )
        _check_decoder(draft, ("start", "step", "rewind"), "The draft")
        self.draft = draft
        self.num_draft_tokens = positive_integer("num_draft_tokens", num_draft_tokens)
        self.strategy = strategy

    def options(self, rows, vocabulary_size=None):
        return self.strategy.options(rows, vocabulary_size)

    def constant_options(self, batch):
        return self.strategy.constant_options(batch)

    @property
    def compiled_in(self):
        return (type(self), self.draft, self.num_draft_tokens, self.strategy.compiled_in)

    @property
    def variables(self):
        return tuple(getattr(self.draft, "variables", ()))

    def begin(self, decoder, request):
        _check_decoder(decoder, ("start", "extend", "rewind"), "The model")
        slack = {"slack": self.num_draft_tokens + 1}
        logits, state = decoder.start(request.inputs, request.max_new_tokens, **slack)
        guesses, draft_state = self.draft.start(request.inputs, request.max_new_tokens, **slack)
        if guesses.shape[-1] != logits.shape[-1]:
            raise ValueError(
                "The draft must have the model's vocabulary. Received: a draft of "
                f"{guesses.shape[-1]} tokens, the model {logits.shape[-1]}"
            )
        batch, length = ops.shape(logits)[0], request.max_new_tokens
        zeros = ops.zeros((batch,), "int32")
        padding = ops.cast(request.pad_token_id, "int32")
        progress = {
            "index": ops.cast(0, "int32"),
            "tokens": ops.broadcast_to(padding, (batch, length)),
            "log_probabilities": ops.zeros((batch, length), "float32"),
            "lengths": zeros,
            "done": ops.cast(request.limits, "int32") <= 0,
            "drafted": zeros,
            "accepted": zeros,
        }
        logits = logits[:, None]
        guesses = ops.zeros((batch, self.num_draft_tokens), "int32")
        used = rules.in_use(request.options)
        before = zeros[:1]
        p = self._probabilities(logits, request, used, progress, guesses, before)[:, 0]
        first = _draw(p, request, zeros, DRAWN)
        progress = self._append(request, progress, first[:, None], zeros + 1, logits)
        # Both have read all but this token.
        return {**progress, "last": first, "state": state, "draft_state": draft_state}

    def advance(self, decoder, request, progress, until):
        count, used = self.num_draft_tokens, rules.in_use(request.options)

        def one_step(request, used, progress):
            last, done = progress["last"], progress["done"]
            guesses, q, draft_state = self._guess(request, used, progress)
            read = ops.concatenate([last[:, None], guesses], axis=1)  # (B, M+1)
            logits, state = decoder.extend(read, progress["state"])
            order = ops.arange(count + 1, dtype="int32")
            p = self._probabilities(logits, request, used, progress, guesses, before=order)

            places = progress["lengths"][:, None] + order[None, :]  # (B, M+1)
            chance = _chance(request, places[:, :count], TAKEN)
            p_of, q_of = (_at(x[:, :count], guesses) for x in (p, q))
            is_taken = ops.cast(chance * q_of < p_of, "int32")
            taken = ops.sum(ops.cumprod(is_taken, axis=1), axis=1)  # (B,)

            q = ops.concatenate([q, ops.zeros_like(q[:, :1])], axis=1)
            # The first that is not taken, or what stands behind the last.
            is_first = ops.equal(order[None, :], taken[:, None])[..., None]
            rest = ops.sum(ops.where(is_first, ops.maximum(p - q, 0.0), 0.0), axis=1)
            whole = ops.sum(ops.where(is_first, p, 0.0), axis=1)
            # Nothing is left of two that are equal but for rounding, or of a draft's NaN.
            rest = ops.where(ops.any(rest > 0, axis=-1, keepdims=True), rest, whole)
            drawn = _draw(rest, request, progress["lengths"] + taken, DRAWN)
            new = ops.where(
                order < taken[:, None],
                ops.concatenate([guesses, drawn[:, None]], axis=1),
                drawn[:, None],
            )

            back = ops.where(done, count + 1, count - taken)
            alive = ops.cast(ops.logical_not(done), "int32")
            added = self._append(request, progress, new, (taken + 1) * alive, logits)
            return {
                **added,
                "index": progress["index"] + 1,
                "drafted": progress["drafted"] + count * alive,
                "accepted": progress["accepted"] + taken * alive,
                "last": ops.where(done, last, drawn),
                "state": decoder.rewind(state, back),
                "draft_state": self.draft.rewind(draft_state, back),
            }

        return advance(one_step, request, progress, used, until)

    def result(self, decoder, request, progress):
        return {
            "token_ids": progress["tokens"],
            "lengths": progress["lengths"],
            "scores": ops.sum(progress["log_probabilities"], axis=1),
            "drafted_tokens": progress["drafted"],
            "accepted_tokens": progress["accepted"],
        }

    def _guess(self, request, used, progress):
        """M guesses (B, M), what they were drawn from (B, M, V), and a state that has read them."""
        count, last = self.num_draft_tokens, progress["last"]
        order = ops.arange(count, dtype="int32")[None, :]
        logits, state = self.draft.step(last, progress["draft_state"])
        batch, vocabulary = ops.shape(last)[0], logits.shape[-1]
        loop = {
            "guesses": ops.zeros((batch, count), "int32"),
            "q": ops.zeros((batch, count, vocabulary), "float32"),
            "logits": logits,
            "state": state,
        }

        def guess(index, loop):
            index = ops.cast(index, "int32")
            here = ops.equal(order, index)
            q = self._probabilities(
                loop["logits"][:, None],
                request,
                used,
                progress,
                loop["guesses"],
                before=ops.reshape(index, (1,)),
            )
            token = _draw(q[:, 0], request, progress["lengths"] + index, GUESSED)
            logits, state = self.draft.step(token, loop["state"])
            return {
                "guesses": ops.where(here, token[:, None], loop["guesses"]),
                "q": ops.where(here[..., None], q, loop["q"]),
                "logits": logits,
                "state": state,
            }

        loop = kernels.serial_loop(0, count, guess, loop)
        return loop["guesses"], loop["q"], loop["state"]

    def _probabilities(self, logits, request, used, progress, guesses, before):
        """What logits (B, m, V) come to by the rules, when so many guesses stand before each.

        Args:
            logits: (B, m, V).
            request, used, progress: The text before the guesses.
            guesses: (B, M).
            before: int32 (m,).

        Returns:
            (B, m, V)
        """
        batch, count, vocabulary = ops.shape(logits)
        lengths = progress["lengths"]
        each = {name: ops.repeat(x, count, axis=0) for name, x in request.options.items()}

        def text():
            after = ops.arange(request.max_new_tokens, dtype="int32")[None, :] - lengths[:, None]
            guess = ops.take_along_axis(
                guesses, ops.clip(after, 0, self.num_draft_tokens - 1), axis=1
            )
            new = ops.where(after < 0, progress["tokens"], guess)[:, None]  # (B, 1, new)
            new = ops.where(after[:, None] < before[None, :, None], new, -1)  # (B, m, new)
            prompt = ops.repeat(request.prompt, count, axis=0)
            return ops.concatenate([prompt, ops.reshape(new, (batch * count, -1))], axis=1)

        step = ops.reshape(lengths[:, None] + before[None, :], (-1,))
        ruled = rules.apply_rules(
            ops.reshape(ops.cast(logits, "float32"), (batch * count, vocabulary)),
            text,
            step,
            each,
            used,
            request.end_token_id,
            self.strategy.rules,
        )
        p = self.strategy.probabilities(ruled, each, used)
        return ops.reshape(p, (batch, count, vocabulary))

    def _append(self, request, progress, new, count, logits):
        """Progress with the first `count` (B,) of the tokens `new` (B, m), up to a row's end.

        `logits` (B, m, V) are the model's own for them.
        """
        order = ops.arange(new.shape[1], dtype="int32")[None, :]
        lengths, limits = progress["lengths"], ops.cast(request.limits, "int32")
        room = limits - lengths
        kept = scored = ops.minimum(count, room)
        done = kept >= room
        if request.end_token_id is not None:
            is_end = ops.logical_and(ops.equal(new, request.end_token_id), order < kept[:, None])
            end = ops.min(ops.where(is_end, order, new.shape[1]), axis=1)
            kept, scored = ops.minimum(kept, end), ops.minimum(scored, end + 1)
            done = ops.logical_or(done, ops.any(is_end, axis=1))
        after = ops.arange(request.max_new_tokens, dtype="int32")[None, :] - lengths[:, None]
        source = ops.clip(after, 0, new.shape[1] - 1)
        log_p = _at(ops.log_softmax(ops.cast(logits, "float32"), axis=-1), new)
        tokens, log_p = (ops.take_along_axis(x, source, axis=1) for x in (new, log_p))
        is_new = ops.logical_and(after >= 0, after < kept[:, None])
        is_scored = ops.logical_and(after >= 0, after < scored[:, None])
        return {
            **progress,
            "tokens": ops.where(is_new, tokens, progress["tokens"]),
            "log_probabilities": ops.where(is_scored, log_p, progress["log_probabilities"]),
            "lengths": lengths + kept,
            "done": ops.logical_or(progress["done"], done),
        }


def _draw(probabilities, request, place, kind):
    """A token for each row: probabilities (B, V), up to a factor, -> int32 (B,)."""
    return sampling_rules.draw(ops.log(probabilities), _chance(request, place, kind))


def _chance(request, place, kind):
    """Numbers in [0, 1) of each row's seed, for places in its text (B,) or (B, m)."""
    seeds = request.seeds if len(place.shape) == 1 else request.seeds[:, None]
    return uniform(seeds, 3 * place + kind)


def _at(x, tokens):
    """x (B, m, V) at the tokens (B, m)."""
    return ops.take_along_axis(x, tokens[..., None], axis=-1)[..., 0]


def _check_decoder(decoder, names, what):
    missing = [name for name in names if not hasattr(decoder, name)]
    if missing:
        raise ValueError(
            f"{what} must have {', '.join(f'`{name}`' for name in names)}, as a GPT has. "
            f"Received: {type(decoder).__name__}, without {', '.join(missing)}"
        )
