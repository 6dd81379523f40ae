"""A batch is applied in another database exactly once, or nothing is until somebody decides."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from pgque_dagster.client import (
    Client,
    ConnectionFailed,
    Delivery,
    InvalidArgument,
    PermissionDenied,
    RemoteConsumer,
    TargetOutOfStep,
    TargetRefused,
    TransactionEnded,
)
from tests.client.consumer.support import is_acked, run_until, run_until_error, send
from tests.conftest import Server, administer
from tests.support.databases import as_user
from tests.support.logins import as_login
from tests.support.moving_driver import make
from tests.support.queues import Connection, connect, rows, tick, value

DONE = "select id from done order by nr"


def test_events_are_applied_in_a_database_without_the_queue(
    client: Client, db: Connection, target_url: str, target: Connection
) -> None:
    send(client, db, "a", "b")
    send(client, db, "c")
    run_until(make("batch", client.url, target_url), lambda: is_acked(client))
    assert rows(target, DONE) == [("a",), ("b",), ("c",)]


def test_a_consumer_in_the_database_of_the_queue_needs_no_table(
    client: Client, db: Connection
) -> None:
    db.execute("create table done (nr serial, id text)")
    send(client, db, "a", "b")
    consumer = RemoteConsumer(client.url, "q", "c")

    @consumer.on()
    def handle(message: Delivery, connection: Any) -> None:
        connection.execute("insert into done (id) values (%s)", (message.payload,))

    run_until(consumer, lambda: is_acked(client))
    assert rows(db, DONE) == [("a",), ("b",)]
    assert value(db, "select to_regclass('pgque_completed_batch')") is None


def test_a_consumer_in_an_event_loop_applies_events_too(
    client: Client, db: Connection, target_url: str, target: Connection
) -> None:
    async def main() -> None:
        consumer = make("batch", client.url, target_url)
        running = asyncio.create_task(consumer.run_async())
        while not await asyncio.to_thread(is_acked, client):
            await asyncio.sleep(0.01)
        consumer.stop()
        await running

    send(client, db, "a")
    asyncio.run(main())
    assert rows(target, DONE) == [("a",)]


@pytest.mark.parametrize("tracking", ["batch", "event"])
def test_an_event_that_fails_leaves_nothing_and_is_applied_later(
    client: Client, db: Connection, target_url: str, target: Connection, tracking: str
) -> None:
    send(client, db, "a", "bad", "b")
    run_until(make(tracking, client.url, target_url, fails=True), lambda: is_acked(client))
    assert rows(target, DONE) == [("a",), ("b",)]
    value(db, "select pgque.maint_retry_events()")
    tick(db)
    run_until(make(tracking, client.url, target_url), lambda: is_acked(client))
    assert rows(target, DONE) == [("a",), ("b",), ("bad",)]


@pytest.mark.parametrize("tracking", ["batch", "event"])
def test_the_tracking_tables_do_not_grow(
    client: Client, db: Connection, target_url: str, target: Connection, tracking: str
) -> None:
    for number in range(5):
        send(client, db, str(number))
    run_until(make(tracking, client.url, target_url), lambda: is_acked(client))
    assert value(target, "select count(*) from pgque_completed_batch") == 1
    if tracking == "event":
        assert value(target, "select count(*) from pgque_completed_event") == 0


class TestOutOfStep:
    @pytest.fixture
    def copy_url(self, server: Server, target_url: str, client: Client, db: Connection) -> Any:
        """The target as it was before its last batch."""
        send(client, db, "a")
        run_until(make("batch", client.url, target_url), lambda: is_acked(client))
        name = target_url.rpartition("/")[2].partition("?")[0]
        administer(server, f"create database {name}_copy template {name}")
        send(client, db, "b")
        run_until(make("batch", client.url, target_url), lambda: is_acked(client))
        send(client, db, "c")
        yield target_url.replace(name, f"{name}_copy")
        administer(server, f"drop database {name}_copy with (force)")

    def test_a_target_that_lost_its_last_batch_stops_the_consumer(
        self, client: Client, copy_url: str
    ) -> None:
        error = run_until_error(make("batch", client.url, copy_url))
        assert isinstance(error, TargetOutOfStep)
        assert "lost its last transactions" in str(error)
        assert "rewind()" in str(error)
        with connect(copy_url) as copy:
            assert rows(copy, DONE) == [("a",)]
        assert not is_acked(client)

    def test_after_a_rewind_it_gets_what_it_lost(self, client: Client, copy_url: str) -> None:
        consumer = make("batch", client.url, copy_url)
        assert isinstance(run_until_error(consumer), TargetOutOfStep)
        consumer.rewind()
        run_until(make("batch", client.url, copy_url), lambda: is_acked(client))
        with connect(copy_url) as copy:
            assert rows(copy, DONE) == [("a",), ("b",), ("c",)]

    def test_after_a_reset_it_goes_on_without_what_it_lost(
        self, client: Client, copy_url: str
    ) -> None:
        consumer = make("batch", client.url, copy_url)
        consumer.reset()
        run_until(consumer, lambda: is_acked(client))
        with connect(copy_url) as copy:
            assert rows(copy, DONE) == [("a",), ("c",)]

    def test_a_consumer_that_was_moved_back_applies_nothing_twice(
        self, client: Client, db: Connection, target_url: str, target: Connection
    ) -> None:
        send(client, db, "a")
        run_until(make("batch", client.url, target_url), lambda: is_acked(client))
        send(client, db, "b")
        client.seek("q", "c", "earliest")
        consumer = make("batch", client.url, target_url)
        error = run_until_error(consumer)
        assert isinstance(error, TargetOutOfStep)
        assert "moved back" in str(error)
        consumer.rewind()
        run_until(make("batch", client.url, target_url), lambda: is_acked(client))
        assert rows(target, DONE) == [("a",), ("b",)]

    def test_a_rewind_keeps_a_batch_that_only_has_to_be_acked(
        self, client: Client, db: Connection, target_url: str, target: Connection
    ) -> None:
        send(client, db, "a")
        run_until(make("batch", client.url, target_url), lambda: is_acked(client))
        send(client, db, "b")
        batch = client.claim("q", "c", owner="test")
        assert batch
        target.execute(
            "update pgque_completed_batch set batch_id = %s, prev_tick_id = %s, tick_id = %s,"
            " fingerprint = %s",
            (
                batch.batch_id,
                batch.lease.prev_tick_id,
                batch.lease.tick_id,
                value(db, "select pgque.tick_fingerprint('q', %s)", batch.lease.tick_id),
            ),
        )
        batch.release()
        consumer = make("batch", client.url, target_url)
        consumer.rewind()
        run_until(consumer, lambda: is_acked(client))
        assert rows(target, DONE) == [("a",)]

    def test_a_queue_of_the_same_name_elsewhere_is_refused(
        self,
        client: Client,
        db: Connection,
        other_url: str,
        other: Connection,
        target_url: str,
    ) -> None:
        send(client, db, "a")
        run_until(make("batch", client.url, target_url), lambda: is_acked(client))
        with Client(other_url) as second:
            second.create_queue("q")
            second.register_consumer("q", "c")
            send(second, other, "b")
        error = run_until_error(make("batch", other_url, target_url))
        assert isinstance(error, TargetOutOfStep)
        assert "is another one" in str(error)


class TestBadInput:
    def test_a_target_without_the_right_to_create_names_the_statements(
        self, client: Client, target_url: str, target: Connection
    ) -> None:
        target.execute("revoke create on schema public from public")
        login = as_login(target_url, "pgque_reader")
        with pytest.raises(PermissionDenied) as caught:
            make("batch", client.url, login).run()
        statements = str(caught.value).partition(" or: ")[2]
        assert "create table public.pgque_completed_batch" in statements.replace('"', "")
        target.execute(statements.encode())
        with pytest.raises(PermissionDenied, match="done"):
            raise run_once(client, login)

    def test_a_target_that_cannot_be_reached_is_an_error_at_the_start(
        self, client: Client, target_url: str
    ) -> None:
        with pytest.raises(ConnectionFailed):
            make("batch", client.url, as_user(target_url, "nobody_of_that_name")).run()

    def test_a_statement_that_the_target_refuses_applies_and_acks_nothing(
        self, client: Client, db: Connection, target_url: str, target: Connection
    ) -> None:
        class Wrong(RemoteConsumer):
            def apply_batch(self, messages: Any, connection: Any) -> None:
                connection.execute("insert into done (id) values ('x')")
                connection.execute("insert into nowhere values (1)")

        send(client, db, "a")
        error = run_until_error(Wrong(client.url, "q", "c", target=target_url))
        assert isinstance(error, TargetRefused)
        assert "nowhere" in str(error)
        assert rows(target, DONE) == []
        assert not is_acked(client)

    @pytest.mark.parametrize("statement", ["commit", "rollback"])
    @pytest.mark.parametrize("is_bulk", [True, False])
    def test_a_function_that_ends_the_transaction_is_refused(
        self, client: Client, db: Connection, target_url: str, statement: str, is_bulk: bool
    ) -> None:
        class Bulk(RemoteConsumer):
            def apply_batch(self, messages: Any, connection: Any) -> None:
                connection.execute(statement)

        send(client, db, "a")
        consumer = (Bulk if is_bulk else RemoteConsumer)(client.url, "q", "c", target=target_url)
        if not is_bulk:
            consumer.on()(lambda message, connection: connection.execute(statement) and None)
        assert isinstance(run_until_error(consumer), TransactionEnded)
        assert not is_acked(client)

    def test_a_consumer_of_whole_batches_takes_no_handlers(self) -> None:
        class Bulk(RemoteConsumer):
            def apply_batch(self, messages: Any, connection: Any) -> None: ...

        with pytest.raises(InvalidArgument, match="without handlers"):
            Bulk("", "q", "c").on()(print)

    def test_a_tracking_that_there_is_not_is_refused(self) -> None:
        with pytest.raises(InvalidArgument, match="no tracking 'row'"):
            RemoteConsumer("", "q", "c", target="", tracking="row")  # type: ignore[arg-type]


def run_once(client: Client, target_url: str) -> BaseException:
    """Runs a consumer that reads a table of the target, until it ends with an error."""

    class Reading(RemoteConsumer):
        def prepare_target(self, connection: Any) -> None:
            connection.execute("select from done")

    consumer = Reading(client.url, "q", "c", target=target_url, lease=timedelta(seconds=2))
    consumer.on()(lambda message, connection: None)
    return run_until_error(consumer)


class TestEventByEvent:
    @pytest.fixture
    def parted(self, client: Client, db: Connection, target_url: str) -> None:
        """A batch of which the target has the first event."""

        class Killed(BaseException):
            pass

        send(client, db, "a", "b")
        consumer = RemoteConsumer(client.url, "q", "c", target=target_url, tracking="event")

        @consumer.on()
        def handle(message: Delivery, connection: Any) -> None:
            connection.execute("insert into done (id) values (%s)", (message.payload,))
            if message.payload == "b":
                raise Killed

        assert isinstance(run_until_error(consumer), Killed)

    def test_events_that_were_applied_are_not_applied_again(
        self, parted: None, client: Client, target_url: str, target: Connection
    ) -> None:
        assert rows(target, DONE) == [("a",)]
        run_until(make("event", client.url, target_url), lambda: is_acked(client))
        assert rows(target, DONE) == [("a",), ("b",)]

    def test_a_rewind_keeps_the_batch(
        self, parted: None, client: Client, target_url: str, target: Connection
    ) -> None:
        make("event", client.url, target_url).rewind()
        run_until(make("event", client.url, target_url), lambda: is_acked(client))
        assert rows(target, DONE) == [("a",), ("b",)]

    def test_the_batch_is_not_applied_as_a_whole(
        self, parted: None, client: Client, target_url: str, target: Connection
    ) -> None:
        error = run_until_error(make("batch", client.url, target_url))
        assert isinstance(error, InvalidArgument)
        assert 'tracking="event"' in str(error)
        assert rows(target, DONE) == [("a",)]

    def test_another_batch_that_may_have_the_same_events_stops_the_consumer(
        self, parted: None, client: Client, target_url: str, target: Connection
    ) -> None:
        lease = client.lease_info("q", "c")
        assert lease
        client.finish_batch(lease.batch_id)
        client.seek("q", "c", "earliest")
        for tracking in ("event", "batch"):
            error = run_until_error(make(tracking, client.url, target_url))
            assert isinstance(error, TargetOutOfStep)
            assert "1 events" in str(error)
        assert rows(target, DONE) == [("a",)]
        make("batch", client.url, target_url).reset()
        run_until(make("batch", client.url, target_url), lambda: is_acked(client))
        assert rows(target, DONE) == [("a",), ("a",), ("b",)]

    def test_an_event_that_another_attempt_applied_is_not_delivered_again(
        self, client: Client, db: Connection, target_url: str
    ) -> None:
        send(client, db, "a")
        consumer = RemoteConsumer(client.url, "q", "c", target=target_url, tracking="event")

        @consumer.on()
        def handle(message: Delivery, connection: Any) -> None:
            with connect(target_url) as another:
                another.execute(
                    "insert into pgque_completed_event values ('q', 'c', %s, %s)",
                    (value(db, "select batch_id from pgque.get_lease_info('q', 'c')"), 1),
                )
            raise ValueError("it failed here")

        run_until(consumer, lambda: is_acked(client))
        assert value(db, "select count(*) from pgque.retry_queue") == 0
