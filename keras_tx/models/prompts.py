"""Prompts in all their forms, read into lists of ids."""

import dataclasses

import numpy as np
from keras import ops

from keras_tx.data import tokenizers


@dataclasses.dataclass(frozen=True)
class Prompts:
    """What was given to be continued.

    Args:
        rows: A list of ids for each prompt.
        is_text: Whether they were text; then the answers are, too.
        is_single: Whether there was one prompt without a list; then there is one answer.
        texts: The texts themselves, if they were text.
    """

    rows: list[list[int]]
    is_text: bool
    is_single: bool
    texts: list[str] | None = None

    def answers(self, found: list):
        return found[0] if self.is_single else found


def read_prompts(
    prompts, *, tokenizer, vocabulary_size: int, pad_token_id, owner: str, name: str = "prompts"
) -> Prompts:
    """Reads text, ids, lists or arrays of either, ragged tensors, and data sets of all these.

    Args:
        prompts: What the user gave.
        tokenizer: Of the prompts, or None.
        vocabulary_size: How many ids there are.
        pad_token_id: Padding behind a prompt, which is no part of it; None if there is none.
        owner: Whose prompts they are, for errors.
        name: The argument that they are, for errors.

    Raises:
        ValueError: If they are none of that, mixed, or hold an unknown id.
    """
    if _is_row_without_ids(prompts):
        return Prompts([[]], False, True)
    prompts = _as_lists(prompts)
    if isinstance(prompts, str):
        texts, is_single = [prompts], True
    elif not isinstance(prompts, (list, tuple)):
        raise ValueError(
            f"`{name}` must be text, a list of texts, ids, or a list of lists of ids. "
            f"Received: {type(prompts).__name__}"
        )
    else:
        kinds = {_kind(prompt) for prompt in prompts}
        if kinds == {"id"}:
            return Prompts([_checked(prompts, vocabulary_size, pad_token_id)], False, True)
        if kinds <= {"row"}:
            rows = [_checked(row, vocabulary_size, pad_token_id) for row in prompts]
            return Prompts(rows, False, False)
        if kinds != {"text"}:
            raise ValueError(
                f"`{name}` must be texts alone, integers alone or lists of integers alone. "
                f"Received a list of: {', '.join(sorted(kinds))}"
            )
        texts, is_single = [str(prompt) for prompt in prompts], False
    if tokenizer is None:
        raise ValueError(
            f"{owner} has no tokenizer: give ids, or build the model with `tokenizer=`"
        )
    rows = tokenizers.encode(tokenizer, texts)
    rows = [_checked(row, vocabulary_size, pad_token_id) for row in rows]
    return Prompts(rows, True, is_single, texts)


def _as_lists(prompts):
    """Arrays, tensors of any library, ragged tensors, iterators and data sets as plain lists."""
    if hasattr(prompts, "as_numpy_iterator"):  # a data set, of batches or of single prompts
        return [row for item in prompts.as_numpy_iterator() for row in _rows_of(item)]
    if hasattr(prompts, "__next__"):
        return [_as_lists(item) for item in prompts]
    if hasattr(prompts, "to_list"):  # ragged
        return _as_lists(prompts.to_list())
    if ops.is_tensor(prompts):
        prompts = ops.convert_to_numpy(prompts)
    if hasattr(prompts, "__array__"):
        prompts = np.asarray(prompts).tolist()
    if isinstance(prompts, bytes):
        return prompts.decode("utf-8", "replace")
    if isinstance(prompts, (list, tuple)):
        return [_as_lists(item) if _is_no_list(item) else item for item in prompts]
    return prompts


def _is_no_list(item):
    """Whether one of several prompts, or ids, is an array, a tensor or bytes."""
    return isinstance(item, bytes) or hasattr(item, "__array__") or ops.is_tensor(item)


def _is_row_without_ids(prompts) -> bool:
    """Whether it is an array or tensor of integers, (0,): one prompt. A list of none is none."""
    is_array = hasattr(prompts, "dtype") and hasattr(prompts, "shape")
    return is_array and tuple(prompts.shape) == (0,) and "int" in str(prompts.dtype)


def _rows_of(item):
    """The prompts in one element of a data set."""
    if isinstance(item, (dict, tuple)):
        raise ValueError(
            "A data set of prompts must hold texts or ids alone. Received elements of type "
            f"{type(item).__name__}: take what is the prompt out of them with `map`."
        )
    item = _as_lists(item)
    if not isinstance(item, (str, list)):
        raise ValueError(
            "A data set of prompts must hold a text, or a row of ids, in each element, or batches "
            f"of them. Received: {item!r}"
        )
    single = isinstance(item, str) or all(_kind(part) == "id" for part in item)
    return [item] if single else item


def _checked(row, vocabulary_size, pad_token_id):
    if any(_kind(token) != "id" for token in row):
        raise ValueError(f"A prompt of ids must hold integers alone. Received: {list(row)}")
    row = [int(token) for token in row]
    if row and not 0 <= min(row) <= max(row) < vocabulary_size:
        raise ValueError(
            f"The ids of a prompt must be from 0 to {vocabulary_size - 1}. "
            f"Received: from {min(row)} to {max(row)}"
        )
    while row and row[-1] == pad_token_id:  # rows of an array are padded
        row.pop()
    return row


def _kind(prompt):
    if isinstance(prompt, (str, np.str_)):
        return "text"
    if isinstance(prompt, (int, np.integer)) and not isinstance(prompt, bool):
        return "id"
    return "row" if isinstance(prompt, (list, tuple, np.ndarray)) else type(prompt).__name__
