"""A batch on its way whose texts are looked at: rows that reach a stop end there."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from keras_tx.models.decoding_results import lists
from keras_tx.models.decoding_run import DecodingRun
from keras_tx.models.stop_texts import StopTexts, settled


class Look(NamedTuple):
    """What there is of each row.

    Args:
        rows: Its ids.
        texts: Their text, where somebody reads it.
        done: Booleans (rows,), whether nothing more comes.
    """

    rows: list
    texts: list | None
    done: np.ndarray


class WatchedRun:
    """Looks at a run again and again until all of it is done.

    Args:
        run: A `DecodingRun`.
        stops: A row whose text holds one of them ends with the fewest ids that do.
        decode: From lists of ids to texts; None where nobody reads any.
    """

    def __init__(self, run: DecodingRun, stops: StopTexts, decode: Callable | None):
        self.run, self.stops, self.decode = run, stops, decode

    def looks(self) -> Iterator[Look]:
        fewest = {}
        for seen in self.run.progress():
            rows = lists(seen["tokens"], seen["lengths"])
            for row, count in fewest.items():
                rows[row] = rows[row][:count]
            texts = None if self.decode is None else self.decode(rows)
            for row, text in enumerate(texts if self.stops else []):
                text = text if seen["done"][row] else settled(text)
                if row not in fewest and self.stops.are_in(text):
                    fewest[row] = self.stops.fewest(rows[row], self.decode)
                    rows[row] = rows[row][: fewest[row]]
                    texts[row] = self.decode([rows[row]])[0]
                    self.run.stopped[row] = True
            yield Look(rows, texts, seen["done"] | self.run.stopped)

    def result(self) -> dict:
        """The strategy's result of rows that end where they stop."""
        *_, last = self.looks()
        result = self.run.result_so_far()
        for row in np.flatnonzero(self.run.stopped):
            count = result["lengths"][row] = len(last.rows[row])
            chosen = self.run.seen["log_probabilities"][row, :count]
            result["scores"][row] = chosen.sum()
        return result

    def pieces(self) -> Iterator[list]:
        """Of each row what is new and final: text, or a list of ids where nobody reads texts."""
        told = [0] * self.run.num_rows
        for look in self.looks():
            wholes = look.rows if look.texts is None else self._final(look)
            pieces = [whole[count:] for whole, count in zip(wholes, told, strict=True)]
            told = [count + len(piece) for count, piece in zip(told, pieces, strict=True)]
            if any(pieces):
                yield pieces

    def _final(self, look):
        """Of each row's text what no later token will change."""
        texts = []
        for text, is_done in zip(map(self.stops.cut, look.texts), look.done, strict=True):
            texts.append(text if is_done else self.stops.without_a_beginning(settled(text)))
        return texts
