"""Programs on PgQ's own classes, as their users write them. Debian's Python runs this file.

    /usr/bin/python3 pgq_consumers.py KIND CONFIG [--register]

Each program notes the events that it gets in the table `sink`, in the transaction that finishes the
batch. An event whose payload begins with `retry` is tagged for another delivery the first time.
"""

import sys
import time
from pathlib import Path
from typing import Any

import pgq
import skytools
from pgq.producer import bulk_insert_events, insert_event
from pgq.status import PGQStatus


def note(db: Any, name: str, batch_id: int, events: Any) -> None:
    curs = db.cursor()
    for event in events:
        if event.data.startswith("retry") and event.retry is None:
            event.tag_retry(0)
            continue
        curs.execute(
            "insert into sink values (%s, %s, %s, %s, %s)",
            [name, batch_id, event.id, event.retry, event.data],
        )
        if event.data.startswith("slow"):
            time.sleep(0.01)


class Consumer(pgq.Consumer):
    """A plain consumer."""

    def process_batch(self, db: Any, batch_id: int, event_list: Any) -> None:
        note(db, self.consumer_name, batch_id, event_list)


class CoopConsumer(pgq.CoopConsumer):
    """One of several workers of a consumer."""

    def process_batch(self, db: Any, batch_id: int, event_list: Any) -> None:
        note(db, self.subconsumer_name, batch_id, event_list)


class LocalConsumer(pgq.LocalConsumer):
    """A consumer that keeps its position in a file, and appends to another one."""

    def process_local_event(self, db: Any, batch_id: int, ev: Any) -> None:
        with Path(f"{self.local_tracking_file}.sink").open("a") as sink:
            sink.write(f"{ev.data}\n")


class RemoteConsumer(pgq.RemoteConsumer):
    """A consumer that applies events in another database, which records the batch."""

    def process_remote_batch(self, db: Any, batch_id: int, event_list: Any, dst_db: Any) -> None:
        note(dst_db, self.consumer_name, batch_id, event_list)


class SerialConsumer(pgq.SerialConsumer):
    """The same, and the other database records the tick."""

    def process_remote_batch(self, db: Any, batch_id: int, event_list: Any, dst_db: Any) -> None:
        note(dst_db, self.consumer_name, batch_id, event_list)


class Producer(skytools.DBScript):
    """Sends events one by one, and some by COPY, and ends."""

    def work(self) -> int:
        db = self.get_database("db")
        curs = db.cursor()
        queue = self.cf.get("queue_name")
        insert_event(curs, queue, "one", "a", "1", "2", "3", "4")
        rows = [("bulk", f"b{number}") for number in range(3)]
        bulk_insert_events(curs, rows, ["type", "data"], queue)
        db.commit()
        sys.exit(0)


def main() -> None:
    kind, *arguments = sys.argv[1:]
    if kind == "status":
        PGQStatus(arguments)
    elif kind in ("RemoteConsumer", "SerialConsumer"):
        globals()[kind]("program", "db", "target_db", arguments).start()
    elif kind == "Producer":
        Producer("program", arguments).start()
    else:
        globals()[kind]("program", "db", arguments).start()


if __name__ == "__main__":
    main()
