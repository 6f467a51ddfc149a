import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Request:
    """What is to be generated, one row for each prompt.

    Args:
        inputs: What the decoder's `start` takes.
        max_new_tokens: Length of the result, at least 1; a shape.
        limits: int32 (B,), the most tokens each row may get; rows with 0 get none.
        prompt: int32 (B, P), the text before the new one as rules see it: ids that end at the last
            place of each row, -1 before them. P may be 0.
        seeds: int32 (B,), each row's own, for strategies that draw.
        options: {name: (B, ...)}, the strategy's parameters of each row.
        end_token_id: The token that ends a row, or None.
        pad_token_id: What stands behind a row's end.
    """

    inputs: Any
    max_new_tokens: int
    limits: Any
    prompt: Any
    seeds: Any
    options: dict
    end_token_id: int | None = None
    pad_token_id: int = 0
