"""The example of docs/partitions.md in Python runs as it is written."""

from pgque_dagster.client import Client
from tests.client.examples import blocks
from tests.support.queues import connect
from tests.support.slots import slot_of


def test_a_worker_takes_a_page_of_a_slot_and_acks_it_with_what_it_wrote(database_url: str) -> None:
    (example,) = blocks("partitions.md")
    keys = [f"key {number}" for number in range(40)]
    with connect(database_url) as db, Client(database_url) as client:
        client.create_queue("orders")
        db.execute("create table mails (id text)")
        db.value("select pgque.subscribe_slots('orders', 'mailer', 8, 'earliest')")
        for key in keys:
            client.send("orders", key, partition_key=key)
        db.tick("orders")
        for _ in range(2):
            exec(example, {"url": database_url})
        assert [key for (key,) in db.rows("select id from mails")] == [
            key for key in keys if slot_of(db, key, 8) == 3
        ]
        assert db.value("select count(*) from mails") > 0
