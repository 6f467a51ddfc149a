def settled(text: str) -> str:
    """What no later token changes: the bytes of half a character are no text yet."""
    return text.rstrip("\ufffd")


class StopTexts:
    """Texts that end an answer, wherever the tokens that hold them begin and end.

    Args:
        stop: Text, a list of texts, or None.
    """

    def __init__(self, stop: str | list[str] | None):
        texts = [] if stop is None else [stop] if isinstance(stop, str) else stop
        if not isinstance(texts, (list, tuple)) or not all(isinstance(t, str) and t for t in texts):
            raise ValueError(
                f"`stop` must be text or a list of texts, none of them empty. Received: {stop!r}"
            )
        self.texts = list(texts)

    def __bool__(self):
        return bool(self.texts)

    def are_in(self, text: str) -> bool:
        return any(stop in text for stop in self.texts)

    def cut(self, text: str) -> str:
        """The text before the first stop in it."""
        ends = [text.find(stop) for stop in self.texts if stop in text]
        return text[: min(ends)] if ends else text

    def fewest(self, ids: list[int], decode) -> int:
        """How many of these ids, whose text has a stop in it, are enough to have one.

        Args:
            ids: Of one answer.
            decode: From lists of ids to texts.
        """
        too_few, enough = 0, len(ids)
        while enough - too_few > 1:
            middle = (too_few + enough) // 2
            if self.are_in(settled(decode([ids[:middle]])[0])):
                enough = middle
            else:
                too_few = middle
        return enough

    def without_a_beginning(self, text: str) -> str:
        """The text up to where a stop may have begun that is not complete yet."""
        longest = max((len(stop) for stop in self.texts), default=0)
        for length in range(min(longest - 1, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self.texts):
                return text[:-length]
        return text
