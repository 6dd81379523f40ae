"""A batch is applied in another database exactly once, or nothing is until somebody decides."""

import itertools
from functools import partial
from typing import Any

import pytest

from pgque_dagster.client import (
    Client,
    ConnectionFailed,
    Consumer,
    Delivery,
    InvalidArgument,
    PermissionDenied,
    TargetOutOfStep,
    TargetRefused,
    TransactionEnded,
)
from tests.client.consumer.support import Queue, run_until_error
from tests.client.target.conftest import Target
from tests.conftest import Server, administer
from tests.support.queues.sql import connect
from tests.support.servers.databases import as_user
from tests.support.servers.logins import as_login


def insert(message: Delivery, connection: Any) -> None:
    connection.execute("insert into done (id) values (%s)", (message.payload,))


def test_events_are_applied_in_a_database_without_the_queue(q: Queue, target: Target) -> None:
    q.send("a", "b")
    q.send("c")
    target.apply()
    assert target.done() == ["a", "b", "c"]


def test_whole_batches_in_the_database_of_the_queue_need_no_table(q: Queue) -> None:
    def apply(messages: Any, connection: Any) -> None:
        for message in messages:
            insert(message, connection)

    q.send("a", "b")
    q.run(Consumer(q.url, "q", "c", apply=apply))
    assert q.done() == ["a", "b"]
    assert q.db.value("select to_regclass('pgque_sink_ledger')") is None


def test_a_consumer_with_a_target_has_no_other_handlers_and_no_subconsumers(target: Target) -> None:
    with pytest.raises(InvalidArgument, match="gets a connection to the target"):
        target.consumer().on("a", transactional=False)
    with pytest.raises(InvalidArgument, match="no subconsumers"):
        target.consumer(subconsumer="s")
    with pytest.raises(InvalidArgument, match="neither rewind nor reset"):
        Consumer(target.q.url, "q", "c").reset()


def test_an_event_that_fails_leaves_nothing_and_is_applied_later(q: Queue, target: Target) -> None:
    q.send("a", "bad", "b")
    target.apply(fails=True)
    assert target.done() == ["a", "b"]
    for number in range(3):
        q.db.value("select pgque.maint_retry_events()")
        q.send(str(number))
    target.apply()
    assert target.done() == ["a", "b", "bad", "0", "1", "2"]
    # The table does not grow.
    assert target.db.value("select count(*) from pgque_sink_ledger") == 1


def test_an_event_that_only_the_commit_refuses_fails_alone(q: Queue, target: Target) -> None:
    target.db.execute("alter table done add unique (id) deferrable initially deferred")
    q.send("a", "b", "a")
    target.apply()
    assert (target.done(), q.retried()) == (["a", "b"], ["a"])


class TestOutOfStep:
    @pytest.fixture
    def copy(self, server: Server, q: Queue, target: Target) -> Any:
        """The target as it was before its last batch."""
        q.send("a")
        target.apply()
        name = target.db.info.dbname
        target.db.close()
        administer(server, f"create database {name}_copy template {name}")
        q.send("b")
        target.apply()
        q.send("c")
        url = server.database_url(f"{name}_copy")
        with connect(url) as db:
            yield Target(url, db, q)
        administer(server, f"drop database {name}_copy with (force)")

    def test_a_target_that_lost_its_last_batch_stops_until_a_rewind_brings_it_again(
        self, copy: Target
    ) -> None:
        error = copy.error()
        assert isinstance(error, TargetOutOfStep)
        assert "lost its last transactions" in str(error)
        assert "rewind()" in str(error)
        assert copy.done() == ["a"]
        assert not copy.q.is_acked()
        copy.consumer().rewind()
        copy.apply()
        assert copy.done() == ["a", "b", "c"]

    def test_after_a_reset_it_goes_on_without_what_it_lost(self, copy: Target) -> None:
        copy.consumer().reset()
        copy.apply()
        assert copy.done() == ["a", "c"]

    def test_a_consumer_that_was_moved_back_applies_nothing_twice(
        self, q: Queue, target: Target
    ) -> None:
        q.send("a")
        target.apply()
        q.send("b")
        q.client.seek("q", "c", "earliest")
        error = target.error()
        assert isinstance(error, TargetOutOfStep)
        assert "moved back" in str(error)
        target.consumer().rewind()
        target.apply()
        assert target.done() == ["a", "b"]

    def test_a_rewind_keeps_a_batch_that_only_has_to_be_acked(
        self, q: Queue, target: Target
    ) -> None:
        q.send("a")
        target.apply()
        q.send("b")
        lease = q.claim().lease
        target.db.execute(
            "update pgque_sink_ledger set batch_id = %s, prev_tick_id = %s, tick_id = %s,"
            " fingerprint = %s",
            (
                lease.batch_id,
                lease.prev_tick_id,
                lease.tick_id,
                q.db.value("select pgque.tick_fingerprint('q', %s)", lease.tick_id),
            ),
        )
        q.claim().release()
        target.consumer().rewind()
        target.apply()
        assert target.done() == ["a"]

    def test_a_queue_of_the_same_name_elsewhere_is_refused(
        self, q: Queue, target: Target, other: Target
    ) -> None:
        q.send("a")
        target.apply()
        other.db.make_queue()
        with Client(other.url) as second:
            elsewhere = target._replace(q=Queue(second, other.db))
            elsewhere.q.send("b")
            error = elsewhere.error()
        assert isinstance(error, TargetOutOfStep)
        assert "is another one" in str(error)


class TestBadInput:
    def test_a_target_without_the_right_to_create_names_the_statements(
        self, q: Queue, target: Target
    ) -> None:
        target.db.execute("revoke create on schema public from public")
        login = as_login(target.url, "pgque_reader")
        with pytest.raises(PermissionDenied) as caught:
            target._replace(url=login).consumer().run()
        statements = str(caught.value).partition(" or: ")[2]
        assert "create table public.pgque_sink_ledger" in statements.replace('"', "")
        target.db.execute(statements.encode())
        target.db.execute("grant insert on done to login_reader")
        target.db.execute("grant usage on sequence done_nr_seq to login_reader")
        q.send("a")
        target._replace(url=login).apply()
        assert target.done() == ["a"]

    def test_a_target_that_cannot_be_reached_is_an_error_at_the_start(self, target: Target) -> None:
        unknown = as_user(target.url, "nobody_of_that_name")
        with pytest.raises(ConnectionFailed):
            target._replace(url=unknown).consumer().run()

    def test_a_statement_that_the_target_refuses_applies_and_acks_nothing(
        self, q: Queue, target: Target
    ) -> None:
        def wrong(messages: Any, connection: Any) -> None:
            connection.execute("insert into done (id) values ('x')")
            connection.execute("insert into nowhere values (1)")

        q.send("a")
        error = run_until_error(Consumer(q.url, "q", "c", target=target.url, apply=wrong))
        assert isinstance(error, TargetRefused)
        assert "nowhere" in str(error)
        assert target.done() == []
        assert not q.is_acked()

    @pytest.mark.parametrize("is_same", [False, True])
    def test_a_batch_that_only_the_commit_refuses_stops_the_consumer(
        self, q: Queue, target: Target, is_same: bool
    ) -> None:
        def wrong(messages: Any, connection: Any) -> None:
            connection.execute("insert into done (id) values ('x'), ('x')")

        (q.db if is_same else target.db).execute(
            "alter table done add unique (id) deferrable initially deferred"
        )
        q.send("a")
        url = None if is_same else target.url
        error = run_until_error(Consumer(q.url, "q", "c", target=url, apply=wrong))
        assert isinstance(error, TargetRefused) and "duplicate key" in str(error)
        assert not q.is_acked()

    def test_a_function_that_ends_the_transaction_is_refused(
        self, q: Queue, target: Target
    ) -> None:
        def end(statement: str, messages: Any, connection: Any) -> None:
            connection.execute(statement)

        q.send("a")
        for statement, is_whole in itertools.product(("commit", "rollback"), (True, False)):
            apply = partial(end, statement)
            whole = apply if is_whole else None
            consumer = Consumer(q.url, "q", "c", target=target.url, apply=whole)
            if is_whole:
                with pytest.raises(InvalidArgument, match="without handlers"):
                    consumer.on()(print)
            else:
                consumer.on()(apply)
            assert isinstance(run_until_error(consumer), TransactionEnded)
            assert not q.is_acked()


def test_a_batch_that_an_earlier_version_applied_in_part_stops_the_consumer(
    q: Queue, target: Target
) -> None:
    target.db.execute(
        "create table pgque_completed_event (queue text, consumer text, batch_id bigint,"
        " ev_id bigint, primary key (queue, consumer, batch_id, ev_id));"
        "insert into pgque_completed_event values ('q', 'c', 1, 1), ('q', 'other', 1, 1)"
    )
    q.send("a", "b")
    error = target.error()
    assert isinstance(error, TargetOutOfStep)
    assert "1 events of batch 1" in str(error)
    assert target.done() == [] and not q.is_acked()
    target.consumer().reset()
    target.apply()
    assert target.done() == ["a", "b"]
    assert target.db.value("select string_agg(consumer, '') from pgque_completed_event") == "other"
