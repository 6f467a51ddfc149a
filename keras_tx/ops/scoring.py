"""How a score and a weight come about, apart from the mask."""

import dataclasses

from keras import ops


@dataclasses.dataclass(frozen=True)
class Scoring:
    """score = cap(scale q . k) + bias; weight = exp(score) / (sum of exp(score) + exp(sink)).

    Args:
        scale: Factor of the products. Default: H ** -0.5.
        soft_cap: If given, scores become `soft_cap * tanh(score / soft_cap)`.
        distance_bias: (N, 2 M - 1), added by the distance of query and key, from -(M - 1) to
            M - 1; M is at least T and S.
        bias: Added, (B or 1, N or 1, T, S).
        sinks: (N,), one more score in each row's sum.
        dropout: Fraction of the weights dropped, and the others made greater by so much.
        seed: int32 scalar for it.
    """

    scale: float | None = None
    soft_cap: float | None = None
    distance_bias: object = None
    bias: object = None
    sinks: object = None
    dropout: float = 0.0
    seed: object = None

    def scale_for(self, head_dim: int) -> float:
        return head_dim**-0.5 if self.scale is None else self.scale

    def capped(self, scores):
        if self.soft_cap is None:
            return scores
        return self.soft_cap * ops.tanh(scores / self.soft_cap)


PLAIN = Scoring()
