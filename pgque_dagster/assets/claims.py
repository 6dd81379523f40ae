"""Which batches a run claims: its own, the next ones, or those of a shared consumer's parts."""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import dagster as dg

from ..client import Batch, BatchLeased, BatchNotOpen, Client, Limits
from ..client.calls.states import ConsumerState, consumer_states
from ..client.cooperative import claim_shared
from ..keys import BATCH_ID, SUBCONSUMER
from .consumption import Consumption

# What a run without a batch of its own (materialized by hand), or beyond it, takes at once.
_AT_ONCE = Limits(max_count=1_000_000)


def next_batches(
    context: dg.AssetExecutionContext, client: Client, consumption: Consumption
) -> Iterator[Batch]:
    """Claims the run's batch, or the next one, and as many after it as are wanted.

    Why there is none to have is logged.

    Yields:
        Batches with events. Each has to be acked before the next is asked for.
    """
    started = time.monotonic()
    limit = consumption.max_seconds
    tag = context.run.tags.get(BATCH_ID)
    claims = _Claims(
        client,
        consumption,
        f"dagster run {context.run.run_id}",
        context.run.tags.get(SUBCONSUMER),
    )
    for number in range(consumption.max_batches):
        if number and limit is not None and time.monotonic() - started >= limit:
            context.log.info(f"Stopped after {number} batches: {limit} s are over.")
            return
        try:
            batch = claims.open_one(int(tag)) if tag and not number else claims.next()
        except (BatchLeased, BatchNotOpen) as error:
            if not number:
                context.log.warning(f"Skipped: {error}")
            return
        if batch is None:
            if not number:
                context.log.info(f"Skipped: {consumption} has no batch yet.")
            return
        yield batch


@dataclass(frozen=True)
class _Claims:
    """Claims batches for a run.

    Args:
        client: the database.
        consumption: of which consumer.
        owner: who claims, for others to read.
        part: the subconsumer that the run is for.
    """

    client: Client
    consumption: Consumption
    owner: str
    part: str | None

    def open_one(self, batch_id: int) -> Batch | None:
        """Claims an open batch and no other."""
        if self.part is not None:
            return self._of_part(self.part, batch_id)
        return self._of_consumer(batch_id)

    def next(self) -> Batch | None:
        """Claims the next batch with events, and finishes those without; None if there is none."""
        while batch := self._next():
            if batch.read_plan(1).events:
                return batch
            batch.ack()
        return None

    def _next(self) -> Batch | None:
        if self.part is not None:
            return self._of_part(self.part)
        names = [(self.consumption.queue, self.consumption.consumer)]
        main, *parts = self.client.run(consumer_states(names, Limits()))
        return self._of_any(parts) if main.role == "coop_main" else self._of_consumer()

    def _of_any(self, parts: Sequence[ConsumerState]) -> Batch | None:
        """Claims through a part that nobody works for; one that has a batch open comes first."""
        free = [part.subconsumer for part in parts if part.batch_id and not part.is_live]
        free += [part.subconsumer for part in parts if not part.batch_id]
        for part in free:
            assert part is not None
            with suppress(BatchLeased):
                return self._of_part(part)
        raise BatchLeased(
            f"each of the {len(parts)} parts of {self.consumption} has a run at work",
            "Materialize the asset when one of them has ended.",
        )

    def _of_consumer(self, batch_id: int | None = None) -> Batch | None:
        return self.client.claim(
            self.consumption.queue,
            self.consumption.consumer,
            owner=self.owner,
            ttl=self.consumption.lease_ttl,
            limits=_AT_ONCE,
            batch_id=batch_id,
        )

    def _of_part(self, part: str, batch_id: int | None = None) -> Batch | None:
        return claim_shared(
            self.client,
            self.consumption.queue,
            self.consumption.consumer,
            part,
            owner=self.owner,
            ttl=self.consumption.lease_ttl,
            limits=_AT_ONCE,
            batch_id=batch_id,
        )
