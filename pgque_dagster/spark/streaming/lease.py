"""The lease that a streaming query has on its consumer while it runs.

The lease is on a batch of the consumer: the micro-batch in progress or, between micro-batches, an
empty batch at the position.
"""

import os
import socket
import time
import uuid
from contextlib import ExitStack, suppress
from datetime import timedelta
from typing import TypeVar

from ...client import Client, LeaseKeeper, plans
from ...client.batch import ack, lease_info, release
from ...client.errors import BatchLeased, ConnectionFailed, PgqueError
from ...client.models import Lease, ReadPlan
from ...client.operation import Call
from ...client.ticks import Tick, TickClaim, claim_ticks, next_tick

T = TypeVar("T")


class StreamLease:
    """The lease of one streaming query on its consumer. It connects at the first call.

    Args:
        ttl: how long a lease lasts without renewal; it is renewed every third of this time.
    """

    def __init__(self, url: str, queue: str, consumer: str, ttl: timedelta) -> None:
        self._url, self._queue, self._consumer, self._ttl = url, queue, consumer, ttl
        owner = f"Spark stream {socket.gethostname()}:{os.getpid()} {uuid.uuid4().hex[:8]}"
        self._who = (queue, consumer, owner, ttl)
        self._client: Client | None = None
        self._claim: TickClaim | None = None
        self._renewing = ExitStack()

    def position(self) -> TickClaim:
        """Returns the claim; at the first call, takes the consumer over.

        Raises:
            BatchLeased: if another owner renews its lease on the consumer.
            ConsumerNotFound: if the consumer is not registered.
        """
        return self._claim or self._take_over()

    def open(self, start: Tick, end: Tick) -> TickClaim:
        """Makes the events between two ticks the open batch, which finishes earlier events.

        Raises:
            BatchLeased: if another owner renews its lease on the consumer.
            LeaseLost: if another owner took the consumer over.
            TicksUnavailable: if the consumer has finished events after `start`, or if one of the
                ticks was lost in a failover.
        """
        claim = self.position()
        if claim.start.fits(start) and claim.end.fits(end):
            return claim
        return self._keep(
            claim_ticks(*self._who, from_tick=start, to_tick=end, epoch=claim.lease.epoch)
        )

    def next_tick(self, after: int, max_events: int | None) -> Tick | None:
        """Returns the last tick within this many events after a tick; None if there is none."""
        return self._run(next_tick(self._queue, self._consumer, after, max_events))

    def read_plan(self, slices: int) -> ReadPlan:
        """Splits the open batch into slices for parallel reading."""
        return self._run(plans.read_plan(self.position().lease.batch_id, slices))

    def close(self) -> None:
        """Releases the lease, so that another query need not wait until it expires.

        The open batch stays open, because only the checkpoint knows whether it was stored.
        """
        self._renewing.close()
        if self._client is None:
            return
        if self._claim is not None:
            with suppress(PgqueError):  # If this fails, the lease expires.
                self._client.run(_release(self._claim.lease))
        self._client.close()
        self._client = self._claim = None

    def _take_over(self) -> TickClaim:
        """Claims the consumer; waits for a live lease to expire, unless its owner renews it."""
        deadline = time.monotonic() + self._ttl.total_seconds()
        seen = None
        while True:
            try:
                return self._keep(claim_ticks(*self._who))
            except BatchLeased as error:
                lease = self._run(lease_info(self._queue, self._consumer))
                renewed = None not in (seen, lease) and seen != lease
                if renewed or time.monotonic() > deadline:
                    raise BatchLeased(
                        f"consumer {self._consumer} of queue {self._queue} is read by another "
                        f"query or worker: {error.args[0]}",
                        "Stop the other one, or register a consumer for each.",
                    ) from error
                seen = lease
            time.sleep(min(1.0, self._ttl.total_seconds() / 10))

    def _keep(self, call: Call[TickClaim]) -> TickClaim:
        claim = self._run(call)
        self._renewing.close()
        self._renewing.enter_context(LeaseKeeper(self._url, claim.lease, self._ttl))
        self._claim = claim
        return claim

    def _run(self, call: Call[T]) -> T:
        """Runs a call, and repeats it on a new connection if the connection broke."""
        self._client = self._client or Client(self._url)
        with suppress(ConnectionFailed):
            return self._client.run(call)
        return self._client.run(call)


def _release(lease: Lease) -> Call[None]:
    if lease.prev_tick_id == lease.tick_id:
        # An empty batch is acked: no other query needs it.
        return ack(lease)
    return release(lease.batch_id, lease.owner, lease.epoch)
