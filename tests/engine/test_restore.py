"""A database that pg_restore or pg_upgrade brought elsewhere goes on where every consumer stood."""

import subprocess
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import psycopg
import pytest

from pgque_dagster.embedded import EmbeddedPostgres
from tests.conftest import INSTALL_SQL, administer, new_server
from tests.support import slots
from tests.support.debian import DebianPostgres
from tests.support.queues import (
    Another,
    Connection,
    compact_ticks,
    connect,
    drain,
    finish,
    hold_snapshot,
    make_queue,
    next_batch,
    open_batch,
    payloads,
    queue_id,
    received,
    refused,
    rotate,
    rows,
    send,
    stored_payloads,
    tick,
    value,
)
from tests.support.replicas import Replicas, replicas
from tests.support.workers import next_of, register

Server = EmbeddedPostgres | DebianPostgres
_numbers = count(1)


@pytest.fixture(scope="module")
def new_cluster() -> Iterator[Server]:
    """A cluster with the roles, where few transaction ids are used."""
    with new_server() as server:
        with psycopg.connect(server.url, autocommit=True) as db:
            db.execute(INSTALL_SQL.read_bytes())
        yield server


@pytest.fixture
def db(another: Another) -> Connection:
    """A database whose cluster is far ahead of the new one."""
    old = another()
    old.execute(
        "do $$ begin for i in 1..3000 loop perform pg_current_xact_id(); commit; end loop; end $$"
    )
    return old


Restore = Callable[..., Connection]


@pytest.fixture
def restore(
    server: Server, new_cluster: Server, database_url: str, tmp_path: Path
) -> Iterator[Restore]:
    """Dumps the test's database and restores it into a cluster; connects to the result."""
    opened: list[tuple[Server, str, Connection]] = []

    def run(*options: str, into: Server = new_cluster) -> Connection:
        name = f"restored_{next(_numbers)}"
        administer(into, f"create database {name}")
        dump = tmp_path / f"{name}.dump"
        command = [server.binary("pg_dump"), "--format=custom", f"--file={dump}", *options]
        subprocess.run([*command, database_url], check=True)
        url = into.database_url(name)
        subprocess.run(
            [server.binary("pg_restore"), "--exit-on-error", f"--dbname={url}", dump], check=True
        )
        opened.append((into, name, connect(url)))
        return opened[-1][2]

    yield run
    for cluster, name, connection in opened:
        connection.close()
        administer(cluster, f"drop database {name} with (force)")


def adopt(db: Connection) -> int:
    written: int = value(db, "select pgque.adopt_restored_database()")
    return written


def settle(db: Connection, call: str, batch: int, payload: str) -> None:
    """Nacks the event with this payload, or gives it up."""
    sql = "array(select ev_id from pgque.get_batch_events(%s) where ev_data = %s)"
    value(db, f"select pgque.{call}".format(sql), batch, batch, payload)


NACK = "nack_batch(%s, {}, '0')"
GIVE_UP = "dead_letter_batch(%s, {}, 'broken')"


@pytest.mark.parametrize("options", [(), ("--inserts",), ("--rows-per-insert=2",)])
def test_each_consumer_gets_what_it_had_not_finished(
    db: Connection, another: Another, restore: Restore, options: tuple[str, ...]
) -> None:
    make_queue(db, consumers=("fast", "slow", "open"), max_retries="1")
    send(db, "one", "again")
    tick(db)
    batch = next_batch(db, consumer="fast")
    settle(db, NACK, batch, "again")
    finish(db, batch)
    drain(db, consumer="open")
    rotate(db)
    send(db, "two", "dead")
    tick(db)
    batch = next_batch(db, consumer="fast")
    settle(db, GIVE_UP, batch, "dead")
    finish(db, batch)
    left_open = next_batch(db, consumer="open")
    send(db, "three")
    with (writer := another()).transaction(force_rollback=True):
        send(writer, "never")
        tick(db)
        send(db, "four")
        new = restore(*options)

    assert value(
        new,
        "select pg_snapshot_xmax(pg_current_snapshot()) < min(pg_snapshot_xmax(tick_snapshot))"
        " from pgque.tick",
    ), "the new cluster is not behind"
    assert adopt(new) > 0
    with refused("PQ003"):
        finish(new, left_open)
    tick(new)
    got = {name: drain(new, consumer=name) for name in ("fast", "slow", "open")}
    assert got == {
        "fast": ["three", "four"],
        "slow": ["one", "again", "two", "dead", "three", "four"],
        "open": ["two", "dead", "three", "four"],
    }
    assert rows(new, "select ev_data from pgque.dead_letter") == [("dead",)]
    value(new, "select pgque.maint_retry_events()")
    tick(new)
    assert {name: drain(new, consumer=name) for name in got} == {
        "fast": ["again"],
        "slow": [],
        "open": [],
    }


def test_an_event_given_back_before_the_dump_and_after_it_comes_again_once(
    db: Connection, restore: Restore
) -> None:
    make_queue(db)
    batch = open_batch(db, "again", "dead")
    settle(db, NACK, batch, "again")
    settle(db, GIVE_UP, batch, "dead")
    new = restore()
    adopt(new)
    tick(new)
    batch = next_batch(new)
    assert payloads(new, batch) == ["again", "dead"]
    value(new, "select pgque.maint_retry_events()")
    settle(new, NACK, batch, "again")
    assert rows(new, "select replayed, failed from pgque.dlq_replay_all('q')") == [(0, 1)]
    finish(new, batch)
    value(new, "select pgque.maint_retry_events()")
    assert rows(new, "select replayed, failed from pgque.dlq_replay_all('q')") == [(1, 0)]
    tick(new)
    assert drain(new) == ["again", "dead"]


def test_ids_times_and_retry_counts_are_kept(db: Connection, restore: Restore) -> None:
    make_queue(db, consumers=("c", "other"))
    batch = open_batch(db, "again", "b")
    settle(db, NACK, batch, "again")
    finish(db, batch)
    value(db, "select pgque.maint_retry_events()")
    columns = "ev_id, ev_time, ev_retry, ev_data"
    table = f"event_{queue_id(db)}"
    before = rows(db, f"select {columns} from pgque.{table} order by ev_id, ev_retry")
    new = restore()
    adopt(new)
    tick(new)
    batches = [next_batch(new, consumer=name) for name in ("c", "other")]
    read = f"select {columns} from pgque.get_batch_events(%s)"
    (again,), others = (rows(new, read, batch) for batch in batches)
    assert (again[2], sorted([again, *others], key=str)) == (1, sorted(before, key=str))


def test_before_adoption_nothing_compares_transactions(db: Connection, restore: Restore) -> None:
    """What was stored after the dump is found by where consumers stand."""
    make_queue(db, consumers=("c", "other"), rotation_period="1 microsecond")
    send(db, "old")
    last = tick(db)
    drain(db, consumer="other")
    next_batch(db)
    position = "select last_tick from pgque.get_consumer_info('q', 'c')"
    lineage = value(db, "select pgque.incarnation()")
    new = restore()
    new.execute(INSTALL_SQL.read_bytes())  # does not adopt
    assert value(new, position) == value(db, position)
    for call in (
        "ticker()",
        "ticker('q')",
        "maint()",
        "maint_rotate_tables_step1('q')",
        f"get_batch_events({next_batch(new)})",
        f"batch_read_plan({next_batch(new)}, 1)",
        "repartition('q', 'c', 2)",
        "lineage()",
    ):
        with refused("PQ018", "adopt_restored_database"):
            rows(new, f"select pgque.{call}")
    with new.transaction(), new.transaction():
        send(new, "early")
    adopt(new)
    newest = tick(new)
    assert (drain(new), drain(new, consumer="other")) == (["old", "early"], ["early"])
    assert value(new, "select pgque.incarnation()") not in (None, lineage)
    assert value(db, "select pgque.incarnation()") == lineage
    # Behind the original's last tick, events come again that were before it.
    plan = "select slice_sql from pgque.tick_range_read_plan('q', %s, %s, 1)"
    with refused("PQ005", f"no tick {last} any more", f"Ticks {last + 1} to {newest}"):
        rows(new, plan, last, newest)


def test_the_queue_runs_on_after_adoption(db: Connection, restore: Restore) -> None:
    """Beside an original that goes on too, whose batch ids it gives out never again."""
    make_queue(db)
    make_queue(db, "alone", consumers=())
    send(db, "ticked", queue="alone")
    tick(db, "alone")
    send(db, "not ticked", queue="alone")
    send(db, "a")
    new = restore()
    originals = set()
    for number in range(5):
        originals.add(open_batch(db, str(number)))
        finish(db, max(originals))
    adopt(new)
    value(new, "select pgque.register_consumer('alone', 'c')")
    assert received(new, "alone") == ["not ticked"]
    got = []
    for number in range(8):
        send(new, str(number))
        tick(new)
        assert next_batch(new) > max(originals) + 999_000
        got += drain(new)
        assert rotate(new) == 1
        compact_ticks(new)
    assert (got, stored_payloads(new)) == (["a", *map(str, range(8))], {"6", "7"})


def test_it_can_be_restored_again(server: Server, db: Connection, restore: Restore) -> None:
    make_queue(db)
    send(db, "a")
    for into in (server, server):
        again = restore(into=into)
        with refused("PQ018"):
            value(again, "select pgque.ticker()")
        adopt(again)
        tick(again)
        assert drain(again) == ["a"]


def test_subconsumers_get_their_open_batches_back(db: Connection, restore: Restore) -> None:
    make_queue(db, consumers=())
    register(db, "one")
    register(db, "two")
    for text in ("done", "held"):
        send(db, text)
        tick(db)
        batch = next_of(db, "one")
        if text == "done":
            finish(db, batch)
    send(db, "unread")
    new = restore()
    adopt(new)
    tick(new)
    assert payloads(new, next_of(new, "two")) == ["held", "unread"]


def test_other_slots_get_only_what_their_keys_lack(db: Connection, restore: Restore) -> None:
    """An adopted slot owns copies of the other slots' events, which it never reads."""
    slots.queue_with_slots(db, 2)
    keys = [f"key {number}" for number in range(12)]
    for number in range(2):
        slots.publish_keyed(db, *((key, f"{key}: {number}") for key in keys))
    slots.drain_slot(db, 1)
    slots.release(db)
    epoch = slots.claim(db)
    lacking = [key for key in keys if slots.slot_of(db, key, 2) == 0]
    new = restore()
    adopt(new)
    assert slots.claim(new) == epoch + 1
    change = "select pgque.repartition('q', 'c', 3)"
    found = []
    while value(new, change):
        for slot in range(2):
            slots.claim(new, slot)
            found += slots.drain_slot(new, slot)
        tick(new)
    tick(new)
    for slot in range(3):
        slots.claim(new, slot)
        found += slots.drain_slot(new, slot, 3)
    assert sorted(found) == sorted(f"{key}: {number}" for key in lacking for number in range(2))


def test_a_database_that_was_not_restored_has_nothing_to_adopt(db: Connection) -> None:
    make_queue(db)
    lineage = value(db, "select pgque.incarnation()")
    db.execute("refresh materialized view pgque.origin")  # as somebody may for all views
    send(db, "a")
    assert (adopt(db), value(db, "select pgque.incarnation()")) == (0, lineage)
    assert received(db) == ["a"]
    hold_snapshot(db)
    with refused("PQ013"):
        adopt(db)
    db.rollback()
    db.execute("set role pgque_reader")
    with refused("42501"):
        adopt(db)


def test_refreshing_the_view_around_adoption_is_harmless(db: Connection, restore: Restore) -> None:
    make_queue(db)
    send(db, "before")
    new = restore()
    send(new, "since")
    new.execute("refresh materialized view pgque.origin")
    adopt(new)
    new.execute("refresh materialized view pgque.origin")
    assert received(new) == ["before", "since"]


@pytest.fixture
def servers(server: Server) -> Iterator[Replicas]:
    with replicas(server) as made:
        yield made


@pytest.mark.server(18)
@pytest.mark.parametrize("is_promoted", [False, True])
def test_an_upgraded_cluster_goes_on(servers: Replicas, is_promoted: bool) -> None:
    old_binary = EmbeddedPostgres(servers.new().folder, version=16).binary
    old = servers.primary(binary=old_binary)
    if is_promoted:
        old = servers.standby(old)
        old.promote()
    with connect(old.url()) as db:
        make_queue(db)
        batch = open_batch(db, "open")
        send(db, "unread")
        lineage = value(db, "select pgque.incarnation()")
    old.stop()

    new = servers.new()
    new.initialize("--no-data-checksums")
    new.run(
        "pg_upgrade",
        *(f"--old-bindir={old_binary('postgres').parent}", f"--old-datadir={old.data}"),
        *("--new-datadir=data", "--username=postgres", f"--socketdir={new.folder}"),
    )
    new.start()
    with connect(new.url()) as db:
        assert (next_batch(db), payloads(db, batch)) == (batch, ["open"])
        finish(db, batch)
        tick(db)
        assert payloads(db, next_batch(db)) == ["unread"]
        assert (value(db, "select pgque.incarnation()") != lineage) == is_promoted
