"""The examples of docs/movers.md run as they are written."""

from typing import Any

from pgque_dagster.client import Client, Event
from tests.client.examples import blocks, has_nothing_to_do, run
from tests.support.queues.sql import connect

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
            " where queue_name <> 'orders' order by 1, 2",
        )
        assert found == [
            ("billing", "order.paid"),
            ("mails", "order.created"),
            ("shipping", "order.paid"),
            ("unsorted", "order.lost"),
        ]
        assert target.value("select count(*) from pgque_sink_ledger") == 2
