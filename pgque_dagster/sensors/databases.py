"""Finds the next batches in one database, or in several that hold a sharded queue.

New batches of shards get one run together. A batch that already had a run gets its next run alone,
so that its failures only use up its own attempts.
"""

import hashlib
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import dagster as dg
import psycopg

from ..client import ConnectionFailed, PgqueError
from ..project.batch_run import BatchRun
from ..project.consumers import AssetConsumer
from ..project.resource import PgqueResource
from .batch_policy import BatchPolicy
from .run_requests import BatchFinder, Findings
from .tick_wait import is_notified, listen

# How long an unreachable shard is left out, because an attempt takes up to 10 seconds.
_AGAIN_SECONDS = 15.0
_WAIT_FOR_RUNS = 1.0  # seconds; an ack sends no NOTIFY

# Until when shards are left out, by URL, and why.
_unreachable: dict[str | None, tuple[float, str]] = {}


@dataclass
class DatabasesFinder:
    """Finds the due batches, with one connection to each database."""

    context: dg.SensorEvaluationContext
    resources: Mapping[str, PgqueResource]
    consumers: Sequence[AssetConsumer]
    policy: BatchPolicy
    run_config: Mapping[str, Any] | None
    stack: ExitStack
    _finders: dict[str, BatchFinder] = field(default_factory=dict)
    _listens: bool = False
    _listener: psycopg.Connection[Any] | None = None

    def find_within(self, seconds: float) -> Findings:
        """Finds batches. While none needs a run, waits for ticks and acks and looks again.

        If a database has an error, it is left out, with the error as reason. If all are left out,
        this only waits, because each evaluation that ends leaves a record in Dagster's home.
        """
        ends_at = time.monotonic() + seconds
        self._listens = seconds > 0 and len(self.resources) == 1
        findings = self._find()
        while not findings.requests and (left := ends_at - time.monotonic()) > 0:
            if not self._finders:
                time.sleep(left)
            elif self._is_due(findings, left):
                findings = self._find()
        return findings

    def _is_due(self, findings: Findings, left: float) -> bool:
        """Waits for a tick or an ack; returns whether to look again.

        If nothing else ticks, or there are several databases, it looks again every second.
        """
        ticks = any(pgque.ticking == "sensor" for pgque in self.resources.values())
        looks = findings.is_consuming or ticks or self._listener is None
        wait = min(left, _WAIT_FOR_RUNS) if looks else left
        if self._listener is None:
            time.sleep(wait)
            return True
        try:
            return is_notified(self._listener, wait) or looks
        except PgqueError:
            # The next look reports the error.
            self._listener = None
            return True

    def _find(self) -> Findings:
        """Opens batches and decides."""
        # A cursor that is lost, or from another version, only changes the order.
        findings = Findings(next_first=self.context.cursor or str(self.consumers[0]))
        new: list[dg.RunRequest] = []
        by_database: dict[str, list[AssetConsumer]] = {}
        for consumer in self.consumers:
            by_database.setdefault(consumer.database.name, []).append(consumer)
        for name, consumers in by_database.items():
            shard = consumers[0].shard
            try:
                found = self._find_in(name, consumers)
            except PgqueError as error:
                told = f"shard {shard} is left out: {error}" if shard else str(error)
                findings.reasons.append(told)
                continue
            findings.reasons += [f"shard {shard}: {x}" if shard else x for x in found.reasons]
            findings.is_consuming |= found.is_consuming
            findings.next_first = found.next_first
            for request in found.requests:
                run = BatchRun.read(request.tags, shard=shard) if shard else None
                is_new = run is not None and run.attempt == 1
                (new if is_new else findings.requests).append(request)
        if new:
            findings.requests.append(_together(new))
        return findings

    def _find_in(self, name: str, consumers: Sequence[AssetConsumer]) -> Findings:
        pgque = self.resources[name]
        until, why = _unreachable.get(pgque.url, (0.0, ""))
        if time.monotonic() < until:
            raise ConnectionFailed(why)
        try:
            if name not in self._finders:
                client = self.stack.enter_context(pgque.client())
                self._finders[name] = BatchFinder.of(
                    self.context, pgque, client, consumers[0].database, self.policy, self.run_config
                )
                if self._listens:
                    queues = sorted({consumer.queue for consumer in consumers})
                    self._listener = listen(client, queues)
            finder = self._finders[name]
            if pgque.ticking == "sensor":
                finder.client.ticker()
            return finder.find(consumers, first=self.context.cursor)
        except ConnectionFailed as error:
            if consumers[0].shard is not None:
                _unreachable[pgque.url] = (time.monotonic() + _AGAIN_SECONDS, str(error))
            self._finders.pop(name, None)
            raise


def _together(requests: Sequence[dg.RunRequest]) -> dg.RunRequest:
    """Returns one request for several batches."""
    keys = "\n".join(str(request.run_key) for request in requests)
    return dg.RunRequest(
        run_key=f"shards:{hashlib.sha256(keys.encode()).hexdigest()}",
        asset_selection=requests[0].asset_selection,
        tags={key: value for request in requests for key, value in request.tags.items()},
        run_config=requests[0].run_config,
    )
