"""Renews a lease in a thread with its own connection."""

import threading
import time
from datetime import timedelta
from typing import Self

from . import calls
from .connection import connect
from .errors import BatchNotOpen, LeaseLost, PgqueError, translated
from .models import Lease

_JOIN_SECONDS = 1.0


class LeaseKeeper:
    """Renews a lease every third of its TTL; after a failed renewal, retries every second.

    Args:
        url: the database of the lease.
        lease: the lease to renew.
        ttl: how long the lease lasts after each renewal.
    """

    def __init__(self, url: str, lease: Lease, ttl: timedelta) -> None:
        self._url = url
        self._lease = lease
        self._ttl = ttl
        self._done = threading.Event()
        self._lost: PgqueError | None = None
        self._valid_until = time.monotonic() + ttl.total_seconds()
        self._thread = threading.Thread(
            target=self._run, name=f"pgque-lease-{lease.batch_id}", daemon=True
        )

    def __enter__(self) -> Self:
        """Starts renewing."""
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Stops renewing; the lease stays as it is."""
        self._done.set()
        # Bounded: a renewal can wait for a row lock that this thread's open transaction holds.
        self._thread.join(_JOIN_SECONDS)

    def check(self) -> None:
        """Returns while the lease is valid.

        Raises:
            LeaseLost: if another owner has the batch, or no renewal succeeded in time.
        """
        if self._lost is not None:
            raise self._lost
        if time.monotonic() >= self._valid_until:
            raise LeaseLost(
                f"the lease on batch {self._lease.batch_id} could not be renewed in time",
                "Another owner may have the batch; discard this attempt.",
            )

    def _run(self) -> None:
        period = self._ttl.total_seconds() / 3
        wait = period
        while not self._done.wait(wait):
            try:
                self._renew()
                wait = period
            except (LeaseLost, BatchNotOpen) as error:
                self._lost = error
                return
            except PgqueError:
                # The database may be reachable again before the lease ends.
                wait = min(1.0, period)

    def _renew(self) -> None:
        started_at = time.monotonic()
        call = calls.batches.renew(self._lease, self._ttl)
        with connect(self._url) as connection, translated():
            connection.execute(call.sql, call.params)
        self._valid_until = started_at + self._ttl.total_seconds()
