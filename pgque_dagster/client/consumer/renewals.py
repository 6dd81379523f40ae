"""Renews the lease on the batch at hand."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Self

from ..lease import Keeper

_LONGEST_STEP = 1.0


class Renewals:
    """A thread that renews one lease after another: to start one for each batch costs more.

    Args:
        ttl: how long the leases last.
    """

    def __init__(self, ttl: timedelta) -> None:
        self._step = min(_LONGEST_STEP, ttl.total_seconds() / 6)
        self._keeper: Keeper | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pgque-leases", daemon=True)

    def __enter__(self) -> Self:
        """Starts the thread."""
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Ends the thread, once a renewal that it is busy with is over."""
        self._done.set()

    @contextmanager
    def of(self, keeper: Keeper) -> Iterator[None]:
        """Renews a lease in the block."""
        self._keeper = keeper
        try:
            yield
        finally:
            self._keeper = None

    def _run(self) -> None:
        while not self._done.wait(self._step):
            keeper = self._keeper
            if keeper is not None:
                keeper.renew_if_due()
