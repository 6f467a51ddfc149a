"""One small tokenizer for all data tests."""

import pytest

from keras_tx import data

TEXT = (
    "The quick brown fox jumps over the lazy dog.\n\n"
    "    def run(x):\n        return x  # tabs\there\n"
    "Più è caffè; perché no? The end of the text.\n"
)


@pytest.fixture(scope="session")
def text():
    return TEXT * 20


@pytest.fixture(scope="session")
def tokenizer(text):
    return data.train_tokenizer([text], 330)


@pytest.fixture(scope="session")
def byte_tokenizer():
    return data.train_tokenizer([], kind="byte")


@pytest.fixture(scope="session")
def word_piece_tokenizer(text):
    return data.train_tokenizer([text], 80, kind="wordpiece")
