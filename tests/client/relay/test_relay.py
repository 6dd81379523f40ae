"""A relay moves each change once, and a tick has all that its snapshot sees."""

import re
import threading
from itertools import count

import pytest

from pgque_dagster.client import Client, InvalidArgument, PermissionDenied
from pgque_dagster.client.relay.relay import Relay
from pgque_dagster.client.relay.setup import begin_relay, end_relay, is_relayed
from pgque_dagster.client.relay.stream import Stream
from pgque_dagster.client.replicas.capture import capture_by_name, check_deletes, check_way
from pgque_dagster.client.replicas.snapshot import Snapshot
from tests.client.relay.conftest import QUEUE, TRIGGERS, Source
from tests.conftest import INSTALL_SQL, new_server
from tests.support.queues.metrics import age_ticks, health, metric, metrics
from tests.support.queues.sql import connect, refused, rows, value
from tests.support.runner.calls import at_call
from tests.support.runner.waiting import wait_until
from tests.support.servers.logins import as_login

LONG = "repeat(md5(random()::text), 200)"


@pytest.fixture
def table(source: Source) -> Source:
    source.db.execute("create table t (id int primary key, n int, long text)")
    source.db.execute("alter table t alter long set storage external")
    source.capture("t")
    return source


def test_a_tick_has_what_its_snapshot_sees_and_nothing_else(table: Source) -> None:
    with connect(table.url) as other, table.relay() as relay:
        other.execute("begin; insert into t values (1)")
        table.db.execute("set synchronous_commit = off; insert into t values (2)")
        first = relay.tick()
        assert table.at(first) == ['{"id":2,"n":null,"long":null}']
        other.execute("commit")
        assert table.at(first) == table.at(first)
        assert len(table.at(relay.tick())) == 2


def test_a_committed_transaction_that_no_snapshot_sees_comes_with_the_next_tick(
    table: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.db.execute(f"insert into t values (1, 0, {LONG})")
    calls, until = count(1), Stream.until

    def later(self: Stream, position: int) -> object:
        # It commits after the snapshot of the tick, before the position is reached.
        if next(calls) == 2:
            table.db.execute("update t set id = 2")
            position = value(table.db, "select (pg_current_wal_insert_lsn() - '0/0')::bigint")
        return until(self, position)

    with table.relay() as relay:
        relay.tick()
        monkeypatch.setattr(Stream, "until", later)
        first = relay.tick()
        assert len(table.at(first)) == 1
        second = relay.tick()
    found = value(table.db, "select row_to_json(t)::text from t")
    assert table.at(second)[2:] == [found]


def test_a_table_that_was_truncated_since_is_copied_where_long_values_lack(
    table: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.db.execute(f"insert into t values (1, 0, {LONG})")
    with table.relay() as relay:
        relay.tick()
        table.db.execute("update t set n = 1")
        # The snapshot sees the update, but no longer the row.
        at_call(monkeypatch, Stream, "until", lambda: table.db.execute("truncate t"))
        relay.move()
    assert [kind for _, kind, _ in table.events()] == ["insert", "update", "copy"]


def test_long_values_that_did_not_change_are_completed(table: Source) -> None:
    table.db.execute(f"insert into t values (1, 0, {LONG}), (2, 0, {LONG}), (3, 0, {LONG})")
    table.db.execute("update t set n = 1")
    table.db.execute("update t set id = 9 where id = 2")
    table.db.execute(f"update t set long = {LONG} where id = 3")
    table.db.execute("update t set n = 2 where id = 3")
    table.tick()
    found = {data.split(",")[0]: data for _, kind, data in table.events() if kind == "update"}
    wanted = rows(table.db, "select '{\"id\":' || id, row_to_json(t)::text from t")
    assert {key: found[key] for key, _ in wanted} == dict(wanted)


def test_a_table_that_was_altered_since_is_copied_where_long_values_lack(table: Source) -> None:
    table.db.execute(f"insert into t values (1, 0, {LONG})")
    table.db.execute("update t set n = 1")
    table.db.execute("alter table t rename long to longer")
    table.tick()
    assert [kind for _, kind, _ in table.events()] == ["insert", "update", "copy"]


def test_what_was_not_confirmed_is_not_moved_again(table: Source) -> None:
    table.db.execute("insert into t values (1)")
    table.tick()
    # The server streams it again, because it goes on where the slot is.
    table.db.execute("insert into t values (2)")
    slot = "select confirmed_flush_lsn < (select lsn from pgque.relay) from pg_replication_slots"
    assert value(table.db, slot + " where database = current_database()")
    table.tick()
    assert [data for *_, data in table.events()] == [
        '{"id":1,"n":null,"long":null}',
        '{"id":2,"n":null,"long":null}',
    ]


def test_a_transaction_that_fails_is_moved_later(
    table: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.db.execute("insert into t select generate_series(1, 12000)")

    def fails(connection: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), table.relay() as relay:
        relay.move(within=fails)
    assert not table.events()
    with table.relay() as relay:
        found = relay.move()
        assert (found.events, found.is_complete) == (12000, True)
    assert len(table.events()) == 12000


def test_many_changes_are_moved_in_several_transactions_before_a_tick(
    table: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgque_dagster.client.relay.relay._CHANGES", 2)
    for number in range(5):
        table.db.execute(f"insert into t values ({number})".encode())
    with table.relay() as relay:
        moved = relay.move()
        assert (moved.events, moved.tick_id, moved.is_complete) == (2, None, False)
        assert len(table.at(relay.tick())) == 5


def test_only_relays_tick_and_others_take_turns(table: Source) -> None:
    table.db.execute("insert into t values (1)")
    rows(table.db, "select pgque.force_next_tick(%s)", QUEUE)
    assert value(table.db, "select pgque.ticker(%s)", QUEUE) is None
    with table.relay() as relay:
        assert relay.move().tick_id == 2
        assert not relay.is_wanted()
        made: list[int] = []

        def compare() -> None:
            with Snapshot.of_tick(table.url, QUEUE) as (tick_id, snapshot):
                with snapshot.connected(table.url) as db:
                    ((found,),) = db.execute("select count(*) from public.t").fetchall()
                made.extend((tick_id, found, len(table.at(tick_id))))

        thread = threading.Thread(target=compare)
        thread.start()
        while not relay.is_wanted():
            pass
        table.db.execute("insert into t values (2)")
    thread.join()
    assert made == [3, 2, 2]


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("alter table t replica identity nothing", "replica identity default"),
        ("alter table t drop constraint t_pkey, add primary key (id) deferrable", "not deferrable"),
        ("alter publication pgque_1 set (publish = 'insert')", "publication pgque_1"),
        ("alter publication pgque_1 set table t where (id > 1)", "publication pgque_1"),
        ("select pg_drop_replication_slot(slot) from pgque.relay", "is gone"),
        ("select pg_replication_slot_advance(slot, pg_current_wal_lsn()) from pgque.relay", "else"),
    ],
)
def test_a_table_whose_changes_are_not_all_there_has_a_problem(
    table: Source, statement: str, why: str
) -> None:
    problem = "select problem from pgque.captured_tables('wal')"
    table.tick()
    assert value(table.db, problem) is None
    table.db.execute("insert into t values (1)")
    # The server ends the session of a relay a moment later.
    active = "select active from pg_replication_slots where database = current_database()"
    wait_until(lambda: not value(table.db, active))
    table.db.execute(statement.encode())
    assert why in value(table.db, problem)
    if "slot" in statement:
        with pytest.raises(InvalidArgument, match=r"pgque relay wal --drop"):
            table.tick()


def test_what_a_relay_does_after_a_snapshot_is_no_problem_in_it(table: Source) -> None:
    with connect(table.url) as other, table.relay() as relay:
        relay.tick()
        other.execute("begin isolation level repeatable read; select 1")
        table.db.execute("insert into t values (1)")
        relay.tick()
        # It confirms a position one transaction later.
        relay.tick()
        ahead = (
            "select s.confirmed_flush_lsn > r.lsn from pgque.relays() r,"
            " pg_replication_slots s where s.slot_name = r.slot"
        )
        wait_until(lambda: value(other, ahead))
        assert value(other, "select problem from pgque.captured_tables('wal')") is None


def test_tables_that_the_wal_does_not_tell_are_refused(source: Source) -> None:
    source.db.execute("create table d (id int primary key deferrable)")
    with refused("PQ005", "not deferrable"):
        source.capture("d")
    source.db.execute("create table i (id int not null unique)")
    source.db.execute("alter table i replica identity using index i_id_key")
    with refused("PQ005", "replica identity default"):
        source.capture("i")


def test_what_makes_a_capture_count_changes_with_the_publication(table: Source) -> None:
    facts = "select pgque.table_facts('t', 'wal') -> 'triggers'"
    before = value(table.db, facts)
    table.capture("t")
    assert value(table.db, facts) == before
    table.db.execute("create table other (id int primary key)")
    table.capture("other")
    assert value(table.db, facts) == before
    table.db.execute("alter publication pgque_1 set (publish = 'insert')")
    table.db.execute("alter publication pgque_1 set (publish = 'insert, update, delete, truncate')")
    assert value(table.db, facts) != before
    before = value(table.db, facts)
    assert value(table.db, "select pgque.uncapture('t', 'wal')") == 1
    assert value(table.db, "select pgque.uncapture('t', 'wal')") == 0
    table.capture("t")
    assert value(table.db, facts) != before


def test_what_makes_a_capture_count_changes_with_a_partition_that_comes_back(
    source: Source,
) -> None:
    source.db.execute("create table p (id int primary key) partition by range (id)")
    source.db.execute("create table p1 partition of p for values from (0) to (10)")
    source.capture("p")
    facts = "select pgque.table_facts('p', 'wal')"
    before = value(source.db, facts)
    assert value(source.db, facts) == before
    source.db.execute("alter table p detach partition p1; insert into p1 values (1)")
    source.db.execute("alter table p attach partition p1 for values from (0) to (10)")
    assert value(source.db, facts)["attached"] != before["attached"]
    assert value(source.db, facts)["files"] == before["files"]


def test_the_end_of_a_relay_leaves_nothing(table: Source) -> None:
    end_relay(table.url, QUEUE)
    assert not rows(table.db, "select from pg_publication")
    slots = "select from pg_replication_slots where database = current_database()"
    assert not rows(table.db, slots)
    assert not rows(table.db, "select from pgque.captured_tables()")
    assert not is_relayed(table.db, QUEUE)
    with pytest.raises(InvalidArgument, match="not captured from the WAL"):
        end_relay(table.url, QUEUE)
    with Client(table.url) as client:
        client.force_next_tick(QUEUE)
        assert client.ticker() >= 1
        client.drop_queue(QUEUE, force=True)


def test_rows_whose_last_values_are_not_there_are_not_kept(source: Source) -> None:
    with Client(source.url) as client:
        with pytest.raises(InvalidArgument, match="only the keys of deleted rows"):
            check_deletes(client, QUEUE, "soft")
        check_deletes(client, QUEUE, "history")
        check_deletes(client, TRIGGERS, "soft")


def test_a_queue_is_captured_in_the_way_that_is_wanted(source: Source) -> None:
    with Client(source.url) as client:
        check_way(client, QUEUE, "wal")
        check_way(client, TRIGGERS, "triggers")
        with pytest.raises(InvalidArgument, match="pgque relay triggers"):
            check_way(client, TRIGGERS, "wal")
        with pytest.raises(InvalidArgument, match="pgque relay wal --drop"):
            check_way(client, QUEUE, "triggers")


def test_what_a_relay_has_to_be_allowed(database_url: str) -> None:
    with connect(database_url) as db:
        db.make_queue(QUEUE)
        login = as_login(database_url, "pgque_admin")
        with pytest.raises(PermissionDenied, match=r"alter role \w+ replication; grant create on"):
            begin_relay(login, QUEUE)
        (user,) = re.findall(r"//(\w+)", login)
        db.execute(f"alter role {user} replication".encode())
        db.execute(f"grant create on database {db.info.dbname} to {user}".encode())
        db.execute("create table t (id int primary key, long text)")
        db.execute("alter table t alter long set storage external")
        db.execute(f"alter table t owner to {user}".encode())
        begin_relay(login, QUEUE)
        begin_relay(login, QUEUE)
        with Client(login) as client:
            capture_by_name(client, QUEUE, "public.t", append=False)
        db.execute(f"insert into t values (1, {LONG})")
        db.execute("update t set id = 2")
        with Snapshot.of_tick(login, QUEUE):
            pass
        assert value(db, "select count(*) from pgque.event_1") == 3
        end_relay(login, QUEUE)
        db.execute(f"alter role {user} noreplication".encode())


def test_health_says_that_a_relay_does_not_run(table: Source) -> None:
    assert health(table.db, QUEUE)["ticker_running"][1].startswith("last tick")
    age_ticks(table.db, "1 hour", QUEUE)
    assert "`pgque relay wal`" in health(table.db, QUEUE)["ticker_running"][1]


def test_health_says_how_much_wal_a_slot_holds_and_that_it_is_lost() -> None:
    sizes = {"max_wal_size": "32MB", "min_wal_size": "32MB", "wal_keep_size": "0"}
    with new_server(max_slot_wal_keep_size="100MB", **sizes) as server, connect(server.url) as db:
        db.execute(INSTALL_SQL.read_bytes())
        db.make_queue(QUEUE)
        begin_relay(server.url, QUEUE)
        found, held = [], []
        for number in (1, 4, 3):
            for _ in range(number):
                rows(db, "select pg_logical_emit_message(true, '', repeat('x', 16000000))")
            db.execute("checkpoint")
            found.append(health(db, QUEUE)["relay"])
            held.append(metric(db, "pgque.relay.held_bytes", QUEUE))
        assert [status for status, _ in found] == ["ok", "warning", "critical"]
        assert "of the WAL, and is lost after" in found[1][1]
        assert held[0] < 2**25 < held[1]
        assert "is lost: " in found[2][1]
        assert metrics(db, "pgque.relay.held_bytes") == {}
        end_relay(server.url, QUEUE)
        assert "relay" not in health(db, QUEUE)


def test_a_queue_with_a_relay_or_with_triggers_is_refused(table: Source) -> None:
    with Client(table.url) as client, pytest.raises(Exception, match="relay"):
        client.drop_queue(QUEUE, force=True)
    table.db.execute("create table b (id int primary key)")
    rows(table.db, "select pgque.capture('b', %s)", TRIGGERS)
    with pytest.raises(InvalidArgument, match=r"public.b.*pgque uncapture"):
        begin_relay(table.url, TRIGGERS)


def test_a_server_without_logical_decoding_is_refused() -> None:
    with (
        new_server(wal_level="replica") as server,
        pytest.raises(InvalidArgument, match="wal_level"),
    ):
        begin_relay(server.url, QUEUE)


def test_the_relay_of_a_queue_that_has_none_is_refused(source: Source) -> None:
    with (
        pytest.raises(InvalidArgument, match="not captured from the WAL"),
        Relay.of(source.url, TRIGGERS),
    ):
        pass
