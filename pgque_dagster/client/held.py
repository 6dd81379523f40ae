"""Which connection the present thread or task holds, for a block of `transaction()`.

Inside the block, calls use this connection, also those of tasks that the block starts. Other
threads and tasks wait for the block, or use another connection of a pool, so none of their calls
becomes part of a transaction that is not theirs. The same holds for tasks that outlive the block.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Generic, TypeVar

C = TypeVar("C")


@dataclass(eq=False)
class _Hold:
    """The connection of one block; None when the block is over."""

    connection: object | None


_HOLDS: ContextVar[dict[int, _Hold] | None] = ContextVar("pgque_holds", default=None)


class Held(Generic[C]):
    """The connection that a session's `transaction()` block holds in this context."""

    def get(self) -> C | None:
        """Returns the connection; None outside of a block."""
        hold = (_HOLDS.get() or {}).get(id(self))
        return hold.connection if hold else None  # type: ignore[return-value]

    @contextmanager
    def hold(self, connection: C) -> Iterator[None]:
        """Makes `get` return the connection in the block."""
        if self.get() is connection:
            # An inner block: the outer one goes on when it ends.
            yield
            return
        hold = _Hold(connection)
        _HOLDS.set({**(_HOLDS.get() or {}), id(self): hold})
        try:
            yield
        finally:
            # Tasks that the block started have copies of the context, and see that it is over.
            hold.connection = None
            # Not by a token: a generator may leave the block in another context.
            others = {key: other for key, other in (_HOLDS.get() or {}).items() if other != hold}
            _HOLDS.set(others)
