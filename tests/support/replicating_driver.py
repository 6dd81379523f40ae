"""A program that applies the next batch to replicas in PostgreSQL, and signals itself at a point.

python -m tests.support.replicating_driver <url> <target> <folder> <point> <signal>
"""

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from pgque_dagster.client import Client
from pgque_dagster.client.batch import Batch
from pgque_dagster.client.errors import BatchNotOpen, LeaseLost
from pgque_dagster.client.last_batch import LastBatch
from pgque_dagster.client.replicas.postgres import PostgresReplicas, replicate

BEFORE_COMMIT, BEFORE_ACK = "before the target's commit", "between the commit and the ack"


def main() -> None:
    url, target, folder, point, number = sys.argv[1:]

    def at(here: str) -> None:
        reached = Path(folder) / "reached"
        if here == point and not reached.exists():
            reached.touch()
            os.kill(os.getpid(), signal.Signals(int(number)))

    record, ack = LastBatch.record, Batch.ack

    def recording(self: LastBatch, *arguments: Any) -> None:
        record(self, *arguments)
        at(BEFORE_COMMIT)

    def acking(self: Batch) -> Any:
        at(BEFORE_ACK)
        return ack(self)

    for owner, name, function in (
        (LastBatch, "record", recording),
        (Batch, "ack", acking),
    ):
        setattr(owner, name, function)
    with Client(url) as client:
        batch = client.claim("changes", "lake", owner="a driver", ttl=timedelta(seconds=30))
        assert batch is not None
        try:
            replicate(batch, ["public.t"], PostgresReplicas(target))
            batch.ack()
        except (LeaseLost, BatchNotOpen) as error:
            sys.exit(f"it is late: {error}")


if __name__ == "__main__":
    main()
