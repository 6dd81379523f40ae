"""Events that many connections write and one transaction publishes."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.databases import as_user
from tests.support.queues import (
    Connection,
    connect,
    make_queue,
    next_batch,
    payloads,
    refused,
    rows,
    tick,
    value,
    wait_until_blocked,
)

Another = Callable[[], Connection]


def open_staging(db: Connection) -> int:
    return int(value(db, "select pgque.open_staging('q')"))


def write(db: Connection, staging: int, *texts: str) -> str:
    """One attempt: writes and commits; returns its transaction."""
    table = value(db, "select pgque.staging_table(%s)", staging)
    with db.transaction(), db.cursor() as cursor:
        txid = value(db, "select pg_current_xact_id()::text")
        with cursor.copy(f"copy {table} (ev_type, ev_data) from stdin".encode()) as copy:
            for text in texts:
                copy.write_row(("t", text))
    return str(txid)


def publish(db: Connection, staging: int, txids: list[str], events: int) -> int:
    return int(
        value(db, "select pgque.publish_staging(%s, %s::xid8[], %s)", staging, txids, events)
    )


def abort(db: Connection, staging: int) -> None:
    rows(db, "select pgque.abort_staging(%s)", staging)


def sent(db: Connection) -> list[str]:
    """The payloads of the next batch."""
    tick(db)
    batch = next_batch(db)
    found = payloads(db, batch)
    rows(db, "select pgque.finish_batch(%s)", batch)
    return found


def staging_tables(db: Connection) -> list[str]:
    return [
        name
        for (name,) in rows(
            db,
            "select relname::text from pg_class where relkind = 'r' and relname ~ '^staging_'"
            " order by 1",
        )
    ]


def make_old(db: Connection, staging: int) -> None:
    rows(
        db,
        "update pgque.staging set used_at = used_at - interval '1 day' where staging_id = %s"
        " returning 1",
        staging,
    )


@pytest.fixture
def queue(db: Connection) -> Connection:
    make_queue(db)
    return db


def test_events_of_the_attempts_named_are_published_and_no_others(queue: Connection) -> None:
    staging = open_staging(queue)
    first = write(queue, staging, "a", "b")
    write(queue, staging, "b, of an attempt that does not count")
    second = write(queue, staging, "c")

    assert publish(queue, staging, [first, second], 3) == 3

    assert sent(queue) == ["a", "b", "c"]


def test_nothing_is_visible_before_publishing(queue: Connection) -> None:
    staging = open_staging(queue)
    write(queue, staging, "a")

    assert sent(queue) == []


def test_publishing_again_returns_the_same_and_sends_nothing(queue: Connection) -> None:
    staging = open_staging(queue)
    txid = write(queue, staging, "a")

    assert publish(queue, staging, [txid], 1) == 1
    assert publish(queue, staging, [txid], 1) == 1
    abort(queue, staging)
    assert publish(queue, staging, [txid], 1) == 1

    assert sent(queue) == ["a"]


def test_publishing_twice_at_once_sends_once_while_an_attempt_still_writes(
    queue: Connection, another: Another, background: ThreadPoolExecutor
) -> None:
    staging = open_staging(queue)
    txid = write(queue, staging, "a")
    writer, second = another(), another()
    table = value(writer, "select pgque.staging_table(%s)", staging)
    with writer.transaction():
        writer.execute(f"insert into {table} (ev_type, ev_data) values ('t', 'late')".encode())
        with queue.transaction():
            first = publish(queue, staging, [txid], 1)
            answer = background.submit(publish, second, staging, [txid], 1)
            wait_until_blocked(another(), second)
    assert (first, answer.result(), sent(queue)) == (1, 1, ["a"])


def test_published_events_are_one_transaction_of_now(queue: Connection) -> None:
    staging = open_staging(queue)
    txids = [write(queue, staging, "a"), write(queue, staging, "b")]

    publish(queue, staging, txids, 2)

    ((transactions, ids, late),) = rows(
        queue,
        "select count(distinct ev_txid), count(distinct ev_id),"
        " bool_or(ev_time < now() - interval '1 minute') from pgque.event_1",
    )
    assert (transactions, ids, late) == (1, 2, False)


def test_a_missing_event_keeps_all_from_being_published(queue: Connection) -> None:
    """As after a crash of the server, which empties unlogged tables."""
    staging = open_staging(queue)
    txid = write(queue, staging, "a", "b")
    rows(queue, f"delete from pgque.staging_{staging} where ev_data = 'b' returning 1")

    with refused("PQ022", f"staging {staging} holds 1 of 2 events", "write the events again"):
        publish(queue, staging, [txid], 2)

    assert sent(queue) == []


def test_nothing_at_all_may_be_published(queue: Connection) -> None:
    assert publish(queue, open_staging(queue), [], 0) == 0
    assert staging_tables(queue) == []


def test_an_aborted_staging_is_gone(queue: Connection) -> None:
    staging = open_staging(queue)
    txid = write(queue, staging, "a")

    abort(queue, staging)

    with refused("PQ022", "not open"):
        publish(queue, staging, [txid], 1)
    with refused("PQ022", "not open"):
        rows(queue, "select pgque.staging_table(%s)", staging)
    assert staging_tables(queue) == []


@pytest.mark.parametrize("end", ["publish", "abort"])
def test_an_attempt_that_still_writes_holds_nobody_up_and_is_removed_later(
    queue: Connection, another: Another, end: str
) -> None:
    staging = open_staging(queue)
    txid = write(queue, staging, "a")
    slow = another()
    table = value(slow, "select pgque.staging_table(%s)", staging)
    with slow.transaction():
        slow.execute(f"insert into {table} (ev_type, ev_data) values ('t', 'late')".encode())
        if end == "publish":
            publish(queue, staging, [txid], 1)
        else:
            abort(queue, staging)
        assert value(queue, "select pgque.maint_staging()") == 0
        assert staging_tables(queue) == [f"staging_{staging}"]

    assert rows(queue, "select func_name from pgque.maint_operations() where func_name ~ 'staging'")
    assert value(queue, "select pgque.maint_staging()") == 1
    assert staging_tables(queue) == []
    assert sent(queue) == (["a"] if end == "publish" else [])


def test_an_attempt_that_begins_after_the_abort_is_refused_and_does_not_keep_the_table(
    queue: Connection, another: Another
) -> None:
    """Spark aborts a write while some of its tasks still start."""
    staging = open_staging(queue)
    slow = another()
    table = value(slow, "select pgque.staging_table(%s)", staging)
    with slow.transaction():
        slow.execute(f"insert into {table} (ev_type, ev_data) values ('t', 'late')".encode())
        abort(queue, staging)

    with refused("PQ022", "not open"):
        rows(queue, "select pgque.staging_table(%s)", staging)
    with refused("PQ022", "not open"):
        publish(queue, staging, [], 0)
    queue.execute("select pgque.maint()")
    assert staging_tables(queue) == []


def test_what_a_dead_writer_left_is_removed_after_a_day_and_not_before(queue: Connection) -> None:
    staging = open_staging(queue)
    txid = write(queue, staging, "a")

    queue.execute("select pgque.maint()")
    assert staging_tables(queue) == [f"staging_{staging}"]
    make_old(queue, staging)
    queue.execute("select pgque.maint()")

    assert staging_tables(queue) == []
    assert rows(queue, "select * from pgque.staging") == []
    with refused("PQ022", "not open"):
        publish(queue, staging, [txid], 1)


def test_a_task_that_begins_keeps_the_staging_for_another_day(queue: Connection) -> None:
    staging = open_staging(queue)
    make_old(queue, staging)

    txid = write(queue, staging, "a")

    assert value(queue, "select pgque.maint_staging()") == 0
    assert publish(queue, staging, [txid], 1) == 1


def test_the_memory_of_a_published_staging_lasts_a_day(queue: Connection) -> None:
    staging = open_staging(queue)
    publish(queue, staging, [write(queue, staging, "a")], 1)

    assert value(queue, "select pgque.maint_staging()") == 0
    make_old(queue, staging)
    assert value(queue, "select pgque.maint_staging()") == 1

    assert rows(queue, "select * from pgque.staging") == []


def test_a_rotation_between_writing_and_publishing_loses_nothing(queue: Connection) -> None:
    rows(queue, "select pgque.set_queue_config('q', 'rotation_period', '1 microsecond')")
    staging = open_staging(queue)
    txid = write(queue, staging, "a")

    queue.execute("select pgque.maint()")
    publish(queue, staging, [txid], 1)

    assert sent(queue) == ["a"]


def test_a_queue_that_is_closed_takes_no_staging(queue: Connection) -> None:
    staging = open_staging(queue)
    txid = write(queue, staging, "a")
    rows(queue, "select pgque.set_queue_config('q', 'disable_insert', 'true')")

    with refused("PQ006", "disable_insert"):
        open_staging(queue)
    with refused("PQ006", "disable_insert"):
        publish(queue, staging, [txid], 1)


def test_a_queue_that_was_dropped_meanwhile_is_noticed(queue: Connection) -> None:
    staging = open_staging(queue)
    txid = write(queue, staging, "a")
    rows(queue, "select pgque.drop_queue('q', true)")

    with refused("PQ022", "its queue was dropped"):
        publish(queue, staging, [txid], 1)


def test_an_unknown_queue_is_named(queue: Connection) -> None:
    with refused("PQ001", "nowhere"):
        rows(queue, "select pgque.open_staging('nowhere')")


def test_a_writer_can_stage_and_nobody_reads_or_changes_it(queue: Connection) -> None:
    queue.execute("create role t_stager in role pgque_writer")
    try:
        queue.execute("set role t_stager")
        staging = open_staging(queue)
        txid = write(queue, staging, "a")
        with refused("42501"):
            rows(queue, f"select * from pgque.staging_{staging}")
        with refused("42501"):
            rows(queue, f"insert into pgque.staging_{staging} (st_txid) values ('3') returning 1")
        assert publish(queue, staging, [txid], 1) == 1
    finally:
        queue.execute("reset role")
        queue.execute("drop role t_stager")


def as_writer(database_url: str, db: Connection, name: str) -> Iterator[Connection]:
    db.execute(f"create role {name} login in role pgque_writer".encode())
    with connect(as_user(database_url, name)) as connection:
        yield connection


@pytest.fixture
def owner(database_url: str, db: Connection) -> Iterator[Connection]:
    yield from as_writer(database_url, db, "t_staging_owner")
    db.execute("drop role t_staging_owner")


@pytest.fixture
def rival(database_url: str, db: Connection) -> Iterator[Connection]:
    yield from as_writer(database_url, db, "t_staging_rival")
    db.execute("drop role t_staging_rival")


def test_another_writer_neither_publishes_nor_aborts_a_staging(
    db: Connection, owner: Connection, rival: Connection
) -> None:
    make_queue(db)
    staging = open_staging(owner)
    txid = write(owner, staging, "a")
    with refused("42501", "t_staging_owner", "t_staging_rival"):
        publish(rival, staging, [txid], 1)
    with refused("42501", "t_staging_owner", "t_staging_rival"):
        abort(rival, staging)
    publish(owner, staging, [txid], 1)
    assert sent(db) == ["a"]


def test_a_writer_under_a_role_of_his_own_is_not_taken_for_another(
    db: Connection, owner: Connection, rival: Connection
) -> None:
    make_queue(db)
    db.execute("grant t_staging_owner to t_staging_rival")
    staging = open_staging(owner)
    txid = write(rival, staging, "a")
    rival.execute("set role t_staging_owner")
    publish(rival, staging, [txid], 1)
    assert sent(db) == ["a"]


def test_an_admin_aborts_the_staging_of_another(db: Connection, owner: Connection) -> None:
    make_queue(db)
    staging = open_staging(owner)
    db.execute("set role pgque_admin")
    abort(db, staging)
    db.execute("reset role")
    assert rows(db, "select from pgque.staging") == []
