"""Events are moved to other queues as they are, each once."""

from datetime import timedelta
from typing import Any

import pytest

from pgque_dagster.client import CallRefused, Client, Consumer, Event, QueueNotFound
from tests.client.consumer.support import Queue
from tests.client.examples import blocks, has_nothing_to_do, run
from tests.client.target.conftest import Target
from tests.programs.moving import mover
from tests.support.queues.sql import Connection, connect
from tests.support.servers.logins import as_login

FIELDS = "ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4"
NASTY = ["\\N", "a\tb\nc\\d\r", "", "naïve ☃ 𝄞", "'; drop table pgque.event"]


@pytest.fixture(autouse=True)
def queues(other: Target) -> None:
    for queue in ("q", "orders"):
        other.db.value("select pgque.create_queue(%s)", queue)


def to_other(other: Target, to: str = "q", **options: Any) -> Consumer:
    return mover(other.q.url, to, **{"target": other.url, **options})


def moved(db: Connection, queue: str, fields: str = "ev_data") -> list[Any]:
    db.tick(queue)
    question = f"""
        select {fields} from pgque.event e join pgque.queue on e.ev_table / 4 = queue_id
        where queue_name = %s order by ev_id
    """
    found = db.rows(question, queue)
    return found if "," in fields else [row[0] for row in found]


class TestMover:
    def test_types_keys_and_extras_stay(self, q: Queue, other: Target) -> None:
        for number, payload in enumerate([*NASTY, None]):
            text = f"type {number}" if number else None
            extras = (f"key {number}", None, "", "\\N")
            insert = "select pgque.insert_event('q', %s, %s, %s, %s, %s, %s)"
            q.db.value(insert, text, payload, *extras)
        q.tick()
        q.run(to_other(other))
        sent = q.db.rows(f"select {FIELDS} from pgque.event order by ev_id")
        assert len(sent) == len(NASTY) + 1
        assert moved(other.db, "q", FIELDS) == sent

    def test_a_writer_may_move(self, q: Queue, other: Target) -> None:
        login = as_login(other.url, "pgque_writer")
        other.db.execute("grant create on schema public to public")
        q.send("a", "b")
        q.run(to_other(other, target=login))
        assert moved(other.db, "q") == ["a", "b"]

    def test_within_a_database_one_transaction_moves_and_acks(self, q: Queue) -> None:
        q.client.create_queue("archive")
        q.send("a", "b")
        q.run(mover(q.url, "archive"))
        assert moved(q.db, "archive") == ["a", "b"]
        assert q.db.value("select to_regclass('pgque_sink_ledger')") is None

    def test_an_event_that_is_delivered_again_is_moved_when_it_is(
        self, q: Queue, other: Target
    ) -> None:
        q.send("a", "b")
        batch = q.claim()
        batch.nack([1], retry_after=timedelta(0))
        batch.ack()
        q.db.value("select pgque.maint_retry_events()")
        q.send("c")
        q.run(to_other(other))
        assert sorted(moved(other.db, "q")) == ["a", "c"]

    def test_a_target_queue_that_takes_nothing_stops_it(self, q: Queue, other: Target) -> None:
        q.send("a")
        with pytest.raises(QueueNotFound):
            to_other(other, "order").run()
        other.db.value("select pgque.set_queue_config('q', 'disable_insert', 'true')")
        with pytest.raises(CallRefused):
            to_other(other).run()
        assert not q.is_acked()


OTHERS = ("shipping", "billing", "mails", "unsorted")


def test_the_examples_of_the_page_run_one_after_another(database_url: str, other_url: str) -> None:
    values: dict[str, Any] = {"__name__": "example", "url": database_url, "target_url": other_url}
    with (
        connect(database_url) as db,
        connect(other_url) as target,
        Client(database_url) as client,
        Client(other_url) as target_client,
    ):
        for queue in ("orders", *OTHERS):
            client.create_queue(queue)
        target_client.create_queue("orders")
        target.execute("create table reserved (id int)")
        client.send_batch(
            "orders",
            [
                Event({"id": 1, "total": 4.5}, type="order.created", key="ann"),
                Event({"id": 1, "total": 5}, type="order.paid"),
                Event({"id": 2}, type="order.lost"),
            ],
        )
        db.tick("orders")
        for block in blocks("movers.md"):
            run(block, values, lambda consumer: has_nothing_to_do(consumer, database_url))
        assert target.rows("select id from reserved") == [(1,)]
        assert target.rows("select ev_type from pgque.event order by ev_id") == [
            ("order.created",),
            ("order.paid",),
            ("order.lost",),
        ]
        found = db.rows(
            "select queue_name, ev_type from pgque.event e"
            " join pgque.queue on ev_table / 4 = queue_id"
            " where queue_name <> 'orders' order by 1, 2"
        )
        assert found == [
            ("billing", "order.paid"),
            ("mails", "order.created"),
            ("shipping", "order.paid"),
            ("unsorted", "order.lost"),
        ]
        assert target.value("select count(*) from pgque_sink_ledger") == 2
