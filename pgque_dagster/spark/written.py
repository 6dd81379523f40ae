"""The names under which an attempt has written; a second write under a name is refused."""

from collections.abc import Iterator
from contextlib import contextmanager

from ..client.errors import InvalidArgument

_UNION_THEM = "Union the DataFrames, and write them once."


class Written:
    """The names under which an attempt has written.

    A second write under one name looks like a second attempt at the first write, so it is refused.

    Args:
        batch: how errors name the batch.
    """

    def __init__(self, batch: str) -> None:
        self._batch = batch
        self._names: set[tuple[str, str]] = set()

    def add(self, name: str, place: str = "", *, hint: str = _UNION_THEM) -> None:
        """Records a write.

        Args:
            name: the name of the write.
            place: distinguishes it from a write of the same name to another place.
            hint: what the error for a second write suggests.

        Raises:
            InvalidArgument: if it is the second write under this name.
        """
        if (name, place) in self._names:
            raise InvalidArgument(f"{self._batch} was already written to {name}", hint)
        self._names.add((name, place))

    @contextmanager
    def adding(self, name: str, *, hint: str = _UNION_THEM) -> Iterator[None]:
        """Records the write that the block does, as `add`, unless the block fails."""
        self.add(name, hint=hint)
        try:
            yield
        except BaseException:
            self._names.discard((name, ""))
            raise
