"""What one attempt at a batch has written, by name: a second write of a name is refused."""

from collections.abc import Iterator
from contextlib import contextmanager

from ..client.errors import InvalidArgument

_UNITE = "Unite the DataFrames, and write them once."


class Written:
    """The names under which an attempt has written.

    Two writes of one name could not be told from two attempts at one write.

    Args:
        batch: what is written, for errors.
    """

    def __init__(self, batch: str) -> None:
        self._batch = batch
        self._names: set[tuple[str, str]] = set()

    def add(self, name: str, place: str = "", *, hint: str = _UNITE) -> None:
        """Takes note of a write.

        Args:
            name: its name.
            place: what tells it from a write of the same name to somewhere else.
            hint: what to do where it is the second.

        Raises:
            InvalidArgument: if it is the second one.
        """
        if (name, place) in self._names:
            raise InvalidArgument(f"{self._batch} was written to {name} before", hint)
        self._names.add((name, place))

    @contextmanager
    def adding(self, name: str, *, hint: str = _UNITE) -> Iterator[None]:
        """Takes note of the write that the block does, unless it fails.

        Raises:
            InvalidArgument: if it is the second one.
        """
        self.add(name, hint=hint)
        try:
            yield
        except BaseException:
            self._names.discard((name, ""))
            raise
