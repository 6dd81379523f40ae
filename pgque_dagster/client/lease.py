"""Renews a lease, once or repeatedly, in a thread with its own connections."""

import threading
import time
from datetime import datetime, timedelta
from typing import Self

from .connection import connect
from .errors import BatchNotOpen, LeaseLost, PgqueError, translated
from .models import Lease
from .operation import Call, first
from .ranges import check_interval

_JOIN_SECONDS = 1.0
_LOOK_SECONDS = 0.2


def renew_batch(lease: Lease, ttl: timedelta) -> Call[datetime]:
    """Renews a lease; returns the time at which it now ends."""
    check_interval("ttl", ttl)
    return Call(
        "select pgque.renew_batch(%s, %s, %s, %s)",
        (lease.batch_id, lease.owner, lease.epoch, ttl),
        first,
    )


class LeaseKeeper:
    """Renews the lease on a batch every third of its TTL; after a failure, retries every second.

    Args:
        url: the database of the lease.
        lease: the lease to renew.
        ttl: how long the lease lasts after each renewal.
    """

    def __init__(self, url: str, lease: Lease, ttl: timedelta) -> None:
        self._url = url
        self._lease = lease
        self._ttl = ttl
        self._lost: LeaseLost | BatchNotOpen | None = None
        self._why_late: PgqueError | None = None
        self._valid_until = time.monotonic() + ttl.total_seconds()
        self._period = ttl.total_seconds() / 3
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pgque-lease", daemon=True)

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
            LeaseLost, BatchNotOpen: if a renewal was refused.
            LeaseLost: if no renewal succeeded in time.
        """
        if self._lost is not None:
            raise self._lost
        if time.monotonic() >= self._valid_until:
            raise LeaseLost(
                f"the lease on batch {self._lease.batch_id} could not be renewed in time",
                "Another owner may have the batch; discard this attempt.",
            ) from self._why_late

    @property
    def lost(self) -> LeaseLost | BatchNotOpen | None:
        """The error if a renewal was refused, or None."""
        return self._lost

    def wait_until_lost(self, until: threading.Event) -> bool:
        """Waits until a renewal is refused or `until` is set; returns whether one was refused."""
        while not self._lost and not until.wait(_LOOK_SECONDS):
            pass
        return self._lost is not None

    def _run(self) -> None:
        wait = self._period
        while self._lost is None and not self._done.wait(wait):
            wait = self._period
            try:
                self._renew()
            except (LeaseLost, BatchNotOpen) as error:
                self._lost = error
            except PgqueError as error:
                # The database may be reachable again before the lease ends.
                self._why_late = error
                wait = min(1.0, wait)

    def _renew(self) -> None:
        started_at = time.monotonic()
        with connect(self._url) as connection, translated():
            renewal = renew_batch(self._lease, self._ttl)
            connection.execute(renewal.sql, renewal.params)
        self._valid_until = started_at + self._ttl.total_seconds()
        self._why_late = None
