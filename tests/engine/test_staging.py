"""Events that many connections write and one transaction publishes."""

from collections.abc import Iterator

import pytest

from tests.support.queues.sql import Connection, refused


def open_staging(db: Connection, queue: str = "q") -> int:
    return int(db.value("select pgque.open_staging(%s)", queue))


def table_of(db: Connection, staging: int) -> str:
    return str(db.value("select pgque.staging_table(%s)", staging))


def write(db: Connection, staging: int, *texts: str) -> str:
    """One attempt: writes and commits; returns its transaction."""
    table = table_of(db, staging)
    with db.transaction(), db.cursor() as cursor:
        txid = db.value("select pg_current_xact_id()::text")
        with cursor.copy(f"copy {table} (ev_type, ev_data) from stdin".encode()) as copy:
            for text in texts:
                copy.write_row(("t", text))
    return str(txid)


def write_late(db: Connection, table: str) -> None:
    db.execute(f"insert into {table} (ev_type, ev_data) values ('t', 'late')".encode())


def publish(db: Connection, staging: int, txids: list[str], events: int) -> int:
    return int(db.value("select pgque.publish_staging(%s, %s::xid8[], %s)", staging, txids, events))


def abort(db: Connection, staging: int) -> None:
    db.rows("select pgque.abort_staging(%s)", staging)


def maintain(db: Connection) -> int:
    return int(db.value("select pgque.maint_staging()"))


def staging_tables(db: Connection) -> list[str]:
    sql = "select relname::text from pg_class where relkind = 'r' and relname ~ '^staging_'"
    return [name for (name,) in db.rows(f"{sql} order by 1")]


def make_old(db: Connection) -> None:
    db.execute("update pgque.staging set used_at = used_at - interval '1 day'")


def test_events_of_the_attempts_named_are_published_at_once_and_no_others(q: Connection) -> None:
    staging = open_staging(q)
    first = write(q, staging, "a", "b")
    write(q, staging, "b, of an attempt that does not count")
    second = write(q, staging, "c")
    assert q.received() == []
    assert publish(q, staging, [first, second], 3) == 3
    assert q.received() == ["a", "b", "c"]
    columns = "count(distinct ev_txid), count(distinct ev_id)"
    sql = f"select {columns}, min(ev_time) < now() - interval '1 minute' from pgque.event_1"
    assert q.rows(sql) == [(1, 3, False)]


def test_publishing_again_returns_the_same_and_sends_nothing(q: Connection) -> None:
    staging = open_staging(q)
    txid = write(q, staging, "a")
    assert publish(q, staging, [txid], 1) == 1
    assert publish(q, staging, [txid], 1) == 1
    with refused("PQ022", "not open"):
        table_of(q, staging)
    abort(q, staging)
    assert publish(q, staging, [txid], 1) == 1
    assert q.received() == ["a"]


def test_publishing_twice_sends_once(q: Connection) -> None:
    staging = open_staging(q)
    txid = write(q, staging, "a")
    writer = q.another()
    table = table_of(writer, staging)
    with writer.transaction():
        write_late(writer, table)
        with q.transaction():
            first = publish(q, staging, [txid], 1)
            answer = q.blocked(publish, staging, [txid], 1)
    assert (first, answer.result(), q.received()) == (1, 1, ["a"])


def test_nothing_at_all_may_be_published(q: Connection) -> None:
    assert publish(q, open_staging(q), [], 0) == 0
    assert staging_tables(q) == []


def test_a_missing_event_keeps_all_from_being_published(q: Connection) -> None:
    """As after a crash of the server, which empties unlogged tables."""
    staging = open_staging(q)
    txid = write(q, staging, "a", "b")
    q.execute(f"delete from pgque.staging_{staging} where ev_data = 'b'".encode())
    with refused("PQ022", f"staging {staging} holds 1 of 2 events", "write the events again"):
        publish(q, staging, [txid], 2)
    assert q.received() == []


@pytest.mark.parametrize("end", ["publish", "abort"])
def test_an_attempt_that_writes_holds_nobody_up(q: Connection, end: str) -> None:
    """Spark aborts a write while some of its tasks still start."""
    staging = open_staging(q)
    txid = write(q, staging, "a")
    slow = q.another()
    table = table_of(slow, staging)
    with slow.transaction():
        write_late(slow, table)
        if end == "publish":
            publish(q, staging, [txid], 1)
        else:
            abort(q, staging)
        assert maintain(q) == 0
        assert staging_tables(q) == [f"staging_{staging}"]
    if end == "abort":
        with refused("PQ022", "not open"):
            table_of(q, staging)
        with refused("PQ022", "not open"):
            publish(q, staging, [], 0)
    assert q.rows("select func_name from pgque.maint_operations() where func_name ~ 'staging'")
    assert maintain(q) == 1
    assert staging_tables(q) == []
    if end == "publish":
        assert publish(q, staging, [txid], 1) == 1, "the publication is forgotten"
    assert q.received() == (["a"] if end == "publish" else [])


def test_what_a_dead_writer_left_is_removed_a_day_after_its_last_task_began(q: Connection) -> None:
    staging = open_staging(q)
    make_old(q)
    txid = write(q, staging, "a")
    q.execute("select pgque.maint()")
    assert staging_tables(q) == [f"staging_{staging}"]
    make_old(q)
    q.execute("select pgque.maint()")
    assert staging_tables(q) == q.rows("select * from pgque.staging") == []
    with refused("PQ022", "not open"):
        publish(q, staging, [txid], 1)


def test_a_task_that_begins_after_a_day_keeps_its_staging(q: Connection) -> None:
    staging = open_staging(q)
    make_old(q)
    with q.transaction():
        table_of(q, staging)
        assert maintain(q.another()) == 0
    assert staging_tables(q) == [f"staging_{staging}"]


def test_the_memory_of_a_published_staging_lasts_a_day(q: Connection) -> None:
    staging = open_staging(q)
    publish(q, staging, [write(q, staging, "a")], 1)
    assert maintain(q) == 0
    make_old(q)
    assert maintain(q) == 1
    assert q.rows("select * from pgque.staging") == []


def test_a_queue_that_is_closed_dropped_or_unknown_takes_no_staging(q: Connection) -> None:
    staging = open_staging(q)
    txid = write(q, staging, "a")
    q.rows("select pgque.set_queue_config('q', 'disable_insert', 'true')")
    with refused("PQ006", "disable_insert"):
        open_staging(q)
    with refused("PQ006", "disable_insert"):
        publish(q, staging, [txid], 1)
    q.rows("select pgque.drop_queue('q', true)")
    with refused("PQ022", "its queue was dropped"):
        publish(q, staging, [txid], 1)
    with refused("PQ001", '"q"'):
        open_staging(q)


class TestWriters:
    @pytest.fixture(autouse=True)
    def roles(self, q: Connection) -> Iterator[None]:
        roles = ("t_staging_owner", "t_staging_rival", "t_staging_third")
        for role in roles:
            q.execute(f"create role {role} in role pgque_writer".encode())
        yield
        q.execute(f"drop role {', '.join(roles)}".encode())

    @pytest.fixture
    def owner(self, q: Connection, roles: None) -> Connection:
        session = q.another()
        session.execute("set session authorization t_staging_owner")
        return session

    @pytest.fixture
    def rival(self, q: Connection, roles: None) -> Connection:
        session = q.another()
        session.execute("set session authorization t_staging_rival")
        return session

    def test_do_not_touch_the_staging_of_another(
        self, q: Connection, owner: Connection, rival: Connection
    ) -> None:
        staging = open_staging(owner)
        txid = write(owner, staging, "a")
        for statement in (
            f"select * from pgque.staging_{staging}",
            f"insert into pgque.staging_{staging} (st_txid) values ('3')",
        ):
            with refused("42501"):
                owner.execute(statement.encode())
        with refused("42501", "t_staging_owner", "t_staging_rival"):
            publish(rival, staging, [txid], 1)
        with refused("42501", "t_staging_owner", "t_staging_rival"):
            abort(rival, staging)
        publish(owner, staging, [txid], 1)
        assert q.received() == ["a"]

    def test_publish_by_a_common_role(
        self, q: Connection, owner: Connection, rival: Connection
    ) -> None:
        q.execute("grant t_staging_owner, t_staging_third to t_staging_rival")
        staging = open_staging(owner)
        txid = write(rival, staging, "a")
        rival.execute("set role t_staging_third")
        with refused("42501", "t_staging_owner", "not by t_staging_third"):
            abort(rival, staging)
        rival.execute("set role t_staging_owner")
        publish(rival, staging, [txid], 1)
        assert q.received() == ["a"]

    def test_an_admin_aborts_the_staging_of_another(self, q: Connection, owner: Connection) -> None:
        staging = open_staging(owner)
        q.execute("set role pgque_admin")
        abort(q, staging)
        q.execute("reset role")
        assert q.rows("select from pgque.staging") == []
