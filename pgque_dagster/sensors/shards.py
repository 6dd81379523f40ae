"""Finds the next batches of a queue that is sharded over several databases.

Those that are new get one run together. One that had a run already gets the next one alone: so what
makes it fail uses up its own attempts, and not those of the others.
"""

import hashlib
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from ..client import Client, ConnectionFailed, PgqueError
from ..project.batch_run import BatchRun
from ..project.consumers import AssetConsumer
from ..project.resource import PgqueResource
from .batch_policy import BatchPolicy
from .run_requests import BatchFinder, Findings

# How long a shard that could not be reached is left out, because to try takes up to 10 seconds.
_AGAIN_SECONDS = 15.0

# Until when, by url, and why.
_unreachable: dict[str | None, tuple[float, str]] = {}


@dataclass
class ShardFinder:
    """Finds the batches that are due, with one connection to each shard.

    Args:
        context: of the evaluation.
        resources: those of the shards, by name.
        consumers: one of each shard.
        policy: when batches are opened and how many attempts they get.
        run_config: of the runs.
        stack: closes the connections.
    """

    context: dg.SensorEvaluationContext
    resources: Mapping[str, PgqueResource]
    consumers: Sequence[AssetConsumer]
    policy: BatchPolicy
    run_config: Mapping[str, Any] | None
    stack: ExitStack
    _clients: dict[str, Client] = field(default_factory=dict)

    def find(self) -> Findings:
        """Opens batches and decides. An error of a shard is a reason, and leaves out that shard."""
        findings = Findings()
        runs: list[tuple[BatchRun, dg.RunRequest]] = []
        for consumer in self.consumers:
            try:
                found = self._find(consumer)
            except PgqueError as error:
                findings.reasons.append(f"shard {consumer.shard} is left out: {error}")
                continue
            findings.reasons += [f"shard {consumer.shard}: {each}" for each in found.reasons]
            for request in found.requests:
                run = BatchRun.read(request.tags, shard=consumer.shard)
                assert run is not None
                runs.append((run, request))
        new = [request for run, request in runs if run.attempt == 1]
        findings.requests = [request for run, request in runs if run.attempt > 1]
        if new:
            findings.requests.append(_together(new))
        return findings

    def _find(self, consumer: AssetConsumer) -> Findings:
        name = consumer.database.name
        pgque = self.resources[name]
        until, why = _unreachable.get(pgque.url, (0.0, ""))
        if time.monotonic() < until:
            raise ConnectionFailed(why)
        try:
            if name not in self._clients:
                self._clients[name] = self.stack.enter_context(pgque.client())
            client = self._clients[name]
            if pgque.ticking == "sensor":
                client.ticker()
            finder = BatchFinder.of(
                self.context, pgque, client, consumer.database, self.policy, self.run_config
            )
            return finder.find([consumer])
        except ConnectionFailed as error:
            _unreachable[pgque.url] = (time.monotonic() + _AGAIN_SECONDS, str(error))
            self._clients.pop(name, None)
            raise


def _together(requests: Sequence[dg.RunRequest]) -> dg.RunRequest:
    """Returns one request for the batches of several."""
    keys = "\n".join(str(request.run_key) for request in requests)
    return dg.RunRequest(
        run_key=f"shards:{hashlib.sha256(keys.encode()).hexdigest()}",
        asset_selection=requests[0].asset_selection,
        tags={key: value for request in requests for key, value in request.tags.items()},
        run_config=requests[0].run_config,
    )
