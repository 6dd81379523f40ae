"""The client that PgQue publishes on PyPI, pgque-py, works with this schema."""

import threading
import time
from collections.abc import Iterator

import pgque
import pytest

from tests.support.queues import PATIENCE_SECONDS, Connection, rows, tick, value


@pytest.fixture
def published(database_url: str, db: Connection) -> Iterator[pgque.PgqueClient]:
    value(db, "select pgque.create_queue('q')")
    with pgque.connect(database_url, autocommit=True) as client:
        client.subscribe("q", "c")
        yield client


def wait_until_handled(handled: list[object], count: int) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(handled) < count and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(handled) == count


def test_it_sends_receives_and_acks(published: pgque.PgqueClient) -> None:
    sent = [
        published.send("q", {"n": 1}),
        published.send("q", pgque.Event({"n": 2}, type="order")),
        *published.send_batch("q", "order", [{"n": 3}, '"four"']),
    ]
    published.force_next_tick("q")
    published.ticker("q")
    messages = published.receive("q", "c")
    assert [message.msg_id for message in messages] == sent
    assert [message.type for message in messages] == ["default", "order", "order", "order"]
    assert [message.payload for message in messages][0::3] == ['{"n": 1}', '"four"']
    assert published.ack(messages[0].batch_id) == 1
    assert published.receive("q", "c") == []


def test_it_sends_in_the_applications_transaction(database_url: str, db: Connection) -> None:
    value(db, "select pgque.create_queue('q')")
    with pgque.connect(database_url) as client:
        client.send("q", {})
        client.conn.rollback()
        client.send("q", {})
        client.conn.commit()
    assert len(rows(db, "select from pgque.event")) == 1


def test_a_message_that_it_nacks_is_delivered_again(
    published: pgque.PgqueClient, db: Connection
) -> None:
    published.send("q", {"n": 1})
    tick(db)
    (message,) = published.receive("q", "c")
    published.nack(message.batch_id, message, retry_after=0)
    published.ack(message.batch_id)
    value(db, "select pgque.maint()")
    tick(db)
    (again,) = published.receive("q", "c")
    assert (again.payload, again.retry_count) == ('{"n": 1}', 1)


def test_a_message_without_retries_becomes_a_dead_letter(
    published: pgque.PgqueClient, db: Connection
) -> None:
    value(db, "select pgque.set_queue_config('q', 'max_retries', '0')")
    published.send("q", {"n": 1})
    tick(db)
    (message,) = published.receive("q", "c")
    published.nack(message.batch_id, message, reason="no such customer")
    published.ack(message.batch_id)
    letters = rows(db, "select ev_data, dl_reason from pgque.dlq_inspect('q')")
    assert letters == [('{"n": 1}', "no such customer")]


def test_its_consumer_is_woken_by_notify(
    published: pgque.PgqueClient, database_url: str, db: Connection
) -> None:
    # Long enough that only a NOTIFY ends the wait in time.
    consumer = pgque.Consumer(database_url, queue="q", name="c", poll_interval=3600)
    handled: list[object] = []
    consumer.on("order")(lambda message: handled.append(message.payload))
    consumer.on("*")(lambda message: handled.append(message.type))
    thread = threading.Thread(target=consumer.start, daemon=True)
    thread.start()
    for count in (1, 2):
        published.send_batch("q", "order", [str(count)])
        tick(db)
        wait_until_handled(handled, count)
    published.send("q", {}, type="other")
    tick(db)
    wait_until_handled(handled, 3)
    consumer.stop()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    assert handled == ["1", "2", "other"]


def test_subconsumers_share_batches(published: pgque.PgqueClient, db: Connection) -> None:
    for name in ("x", "y"):
        published.subscribe_subconsumer("q", "shared", name)
    for number in (1, 2):
        published.send("q", {"n": number})
        tick(db)
    received = [published.receive_coop("q", "shared", name) for name in ("x", "y")]
    assert [message.payload for messages in received for message in messages] == [
        '{"n": 1}',
        '{"n": 2}',
    ]


class TestErrors:
    def test_an_unknown_queue_is_typed(self, published: pgque.PgqueClient) -> None:
        with pytest.raises(pgque.PgqueQueueNotFound):
            published.send("nosuch", {})

    def test_an_unknown_consumer_is_typed(self, published: pgque.PgqueClient) -> None:
        with pytest.raises(pgque.PgqueConsumerNotFound):
            published.receive("q", "nobody")

    def test_an_unknown_batch_is_typed(self, published: pgque.PgqueClient) -> None:
        message = pgque.Message(1, 4711, "t", "{}", None, None)  # type: ignore[arg-type]
        with pytest.raises(pgque.PgqueBatchNotFound):
            published.nack(4711, message)

    def test_a_second_ack_is_typed(self, published: pgque.PgqueClient, db: Connection) -> None:
        published.send("q", {})
        tick(db)
        (message,) = published.receive("q", "c")
        published.ack(message.batch_id)
        with pytest.raises(pgque.PgqueBatchNotFound):
            published.ack(message.batch_id)

    def test_an_unreachable_database_is_typed(self) -> None:
        with pytest.raises(pgque.PgqueConnectionError):
            pgque.connect("host=/nonexistent dbname=x")
