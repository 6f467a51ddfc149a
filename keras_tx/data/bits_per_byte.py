"""Compression of a test text by a language model."""

import math

import numpy as np

from keras_tx.data import tokenizers


def bits_per_byte(loss: float, num_tokens: int, num_bytes: int) -> float:
    """`loss * num_tokens / (ln 2 * num_bytes)`: the bits a model needs for each byte of a text.

    Comparable between tokenizers, and with any compressor of the same text.

    Args:
        loss: Mean negative log-likelihood of a token in nats, over all tokens of the text.
        num_tokens: How many tokens that mean is over.
        num_bytes: Length of the text in UTF-8.

    Raises:
        ValueError: If there is no token or no byte.

    Example:
        >>> train, test, tokenizer = language_modeling(["one two three " * 40], tokenizer="byte")
        >>> text, num_tokens = covered_text(test, tokenizer)
        >>> loss = np.log(2)  # gpt.evaluate(test, return_dict=True)["loss"]
        >>> bits_per_byte(loss, num_tokens, len(text.encode())) < 1.1
        True
    """
    if num_tokens < 1 or num_bytes < 1:
        raise ValueError(
            f"Expected at least one token and one byte. Received num_tokens={num_tokens}, "
            f"num_bytes={num_bytes}."
        )
    return float(loss) * num_tokens / (math.log(2) * num_bytes)


def covered_text(dataset, tokenizer) -> tuple[str, int]:
    """`(text, num_tokens)` of a test data set of `language_modeling`.

    The text is decoded from the targets of weight 1, in order, so it is the test text itself
    wherever the tokenizer is lossless (the default and `"byte"` are; WordPiece is not). The end
    token of each document counts among the tokens.

    Args:
        dataset: The test data set.
        tokenizer: The tokenizer that came with it.
    """
    ids = [np.asarray(targets)[np.asarray(weights) > 0] for _, targets, weights in dataset]
    ids = np.concatenate(ids)
    return tokenizers.decode(tokenizer, [ids.tolist()])[0], len(ids)
