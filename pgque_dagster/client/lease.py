"""Renews a lease in a thread with its own connection."""

import threading
import time
from datetime import timedelta
from typing import Any, Self

from . import calls
from .calls.call import Call
from .connection import connect
from .errors import BatchNotOpen, LeaseLost, PgqueError, translated
from .models import Lease

_JOIN_SECONDS = 1.0
_LOOK_SECONDS = 0.2


class Keeper:
    """Renews a lease every third of its TTL; after a failed renewal, retries every second.

    Args:
        url: the database of the lease.
        renewal: the call that renews the lease, and raises `LeaseLost` if it is lost.
        of: what is leased, such as `batch 12`.
        ttl: how long the lease lasts after each renewal.
    """

    def __init__(self, url: str, renewal: Call[Any], of: str, ttl: timedelta) -> None:
        self._url = url
        self._renewal = renewal
        self._of = of
        self._ttl = ttl
        self._done = threading.Event()
        self._lost: LeaseLost | BatchNotOpen | None = None
        self._valid_until = time.monotonic() + ttl.total_seconds()
        self._wait = self._period = ttl.total_seconds() / 3
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Starts renewing."""
        name = f"pgque-lease-{self._of.replace(' ', '-')}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Stops renewing; the lease stays as it is."""
        self._done.set()
        # Bounded: a renewal can wait for a row lock that this thread's open transaction holds.
        assert self._thread is not None
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
                f"the lease on {self._of} could not be renewed in time",
                "Another owner may have the batch; discard this attempt.",
            )

    @property
    def lost(self) -> LeaseLost | BatchNotOpen | None:
        """The error of the renewal that was refused, if one was."""
        return self._lost

    def wait_until_lost(self, until: threading.Event) -> bool:
        """Waits until a renewal is refused, or another event; says whether one was refused."""
        while not self._lost and not until.wait(_LOOK_SECONDS):
            pass
        return self._lost is not None

    def _run(self) -> None:
        while self._lost is None and not self._done.wait(self._wait):
            self._renew()

    def _renew(self) -> None:
        try:
            self._run_renewal()
            self._wait = self._period
        except (LeaseLost, BatchNotOpen) as error:
            self._lost = error
        except PgqueError:
            # The database may be reachable again before the lease ends.
            self._wait = min(1.0, self._period)

    def _run_renewal(self) -> None:
        started_at = time.monotonic()
        with connect(self._url) as connection, translated():
            cursor = connection.execute(self._renewal.sql, self._renewal.params)
            self._renewal.parse(cursor.fetchall())
        self._valid_until = started_at + self._ttl.total_seconds()


class LeaseKeeper(Keeper):
    """Renews the lease on a batch.

    Args:
        url: the database of the lease.
        lease: the lease to renew.
        ttl: how long the lease lasts after each renewal.
    """

    def __init__(self, url: str, lease: Lease, ttl: timedelta) -> None:
        super().__init__(url, calls.batches.renew(lease, ttl), f"batch {lease.batch_id}", ttl)
