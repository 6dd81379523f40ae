"""A database that pg_restore brought into another cluster goes on where every consumer stood."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psycopg
import pytest

from pgque_dagster.embedded import EmbeddedPostgres
from tests.conftest import INSTALL_SQL, administer, new_server
from tests.support import slots
from tests.support.debian import DebianPostgres
from tests.support.queues import (
    Connection,
    compact_ticks,
    connect,
    drain,
    finish,
    make_queue,
    next_batch,
    open_batch,
    payloads,
    refused,
    rotate,
    rows,
    send,
    stored_payloads,
    tick,
    value,
)

Another = Callable[[], Connection]
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


def nack(db: Connection, batch: int, payload: str, after: str = "0") -> None:
    sql = """
    select pgque.nack_batch(%s, array(
        select ev_id from pgque.get_batch_events(%s) where ev_data = %s), %s::interval)
    """
    value(db, sql, batch, batch, payload, after)


@contextmanager
def uncommitted(db: Connection, *texts: str) -> Iterator[None]:
    with db.transaction(force_rollback=True):
        send(db, *texts)
        yield


DUMPS = [(), ("--inserts",), ("--rows-per-insert=2",)]


@pytest.mark.parametrize("options", DUMPS)
def test_each_consumer_gets_what_it_had_not_finished(
    db: Connection, another: Another, restore: Restore, options: tuple[str, ...]
) -> None:
    make_queue(db, consumers=("fast", "slow", "open"), max_retries="1")
    send(db, "one", "again")
    tick(db)
    batch = next_batch(db, consumer="fast")
    nack(db, batch, "again")
    finish(db, batch)
    drain(db, consumer="open")
    rotate(db)
    send(db, "two", "dead")
    tick(db)
    batch = next_batch(db, consumer="fast")
    value(
        db,
        "select pgque.dead_letter_batch(%s, array(select ev_id"
        " from pgque.get_batch_events(%s) where ev_data = 'dead'), 'broken')",
        batch,
        batch,
    )
    finish(db, batch)
    left_open = next_batch(db, consumer="open")
    send(db, "three")
    with uncommitted(another(), "never"):
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


def test_ids_times_and_retry_counts_are_kept(db: Connection, restore: Restore) -> None:
    make_queue(db, consumers=("c", "other"))
    send(db, "again", "b")
    tick(db)
    batch = next_batch(db)
    nack(db, batch, "again")
    finish(db, batch)
    value(db, "select pgque.maint_retry_events()")
    kept = "select ev_id, ev_time, ev_retry, ev_data from pgque.event_1 order by ev_id, ev_retry"
    before = rows(db, kept.replace("event_1", f"event_{queue_number(db)}"))
    new = restore()
    adopt(new)
    tick(new)
    batches = [next_batch(new, consumer=name) for name in ("c", "other")]
    read = "select ev_id, ev_time, ev_retry, ev_data from pgque.get_batch_events(%s)"
    (again,), others = (rows(new, read, batch) for batch in batches)
    assert (again[2], sorted([again, *others], key=str)) == (1, sorted(before, key=str))


def queue_number(db: Connection) -> int:
    number: int = value(db, "select queue_id from pgque.queue")
    return number


def test_nothing_that_compares_transactions_runs_before_adoption(
    db: Connection, restore: Restore
) -> None:
    make_queue(db, rotation_period="1 microsecond")
    send(db, "a")
    tick(db)
    next_batch(db)
    new = restore()
    for call in (
        "ticker()",
        "ticker('q')",
        "maint()",
        "maint_rotate_tables_step1('q')",
        f"get_batch_events({next_batch(new)})",
        f"batch_read_plan({next_batch(new)}, 1)",
        "repartition('q', 'c', 2)",
    ):
        with refused("PQ018", "adopt_restored_database"):
            rows(new, f"select pgque.{call}")


def test_events_sent_before_adoption_arrive_at_all_consumers(
    db: Connection, restore: Restore
) -> None:
    make_queue(db, consumers=("c", "other"))
    send(db, "old")
    tick(db)
    drain(db)
    new = restore()
    with new.transaction(), new.transaction():
        send(new, "early")
    adopt(new)
    tick(new)
    assert (drain(new), drain(new, consumer="other")) == (["early"], ["old", "early"])


def test_the_queue_runs_on_after_adoption(db: Connection, restore: Restore) -> None:
    make_queue(db)
    send(db, "a")
    new = restore()
    adopt(new)
    got = []
    for number in range(8):
        send(new, str(number))
        tick(new)
        got += drain(new)
        assert rotate(new) == 1
        compact_ticks(new)
    assert (got, stored_payloads(new)) == (["a", *map(str, range(8))], {"6", "7"})


def test_a_restored_database_can_be_dumped_and_restored_again(
    server: Server, db: Connection, restore: Restore
) -> None:
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
    value(db, "select pgque.register_subconsumer('q', 'team', 'one')")
    value(db, "select pgque.register_subconsumer('q', 'team', 'two')")
    open_one = "select pgque.next_batch('q', 'team', 'one')"
    for text in ("done", "held"):
        send(db, text)
        tick(db)
        batch = value(db, open_one)
        if text == "done":
            finish(db, batch)
    send(db, "unread")
    new = restore()
    adopt(new)
    tick(new)
    batch = value(new, "select pgque.next_batch('q', 'team', 'two')")
    assert payloads(new, batch) == ["held", "unread"]


def test_the_epoch_of_a_slot_does_not_fall_by_adoption(db: Connection, restore: Restore) -> None:
    slots.queue_with_slots(db, 1)
    slots.release(db)
    epoch = slots.claim(db)
    new = restore()
    adopt(new)
    assert slots.claim(new) == epoch + 1


def test_other_slots_after_adoption_get_only_what_their_keys_have_not_finished(
    db: Connection, restore: Restore
) -> None:
    """An adopted slot owns copies of the other slots' events, which it never reads."""
    slots.queue_with_slots(db, 2)
    keys = [f"key {number}" for number in range(12)]
    for number in range(2):
        slots.publish_keyed(db, *((key, f"{key}: {number}") for key in keys))
    slots.drain_slot(db, 1)
    expected = {
        f"{key}: {number}" for key in keys if slots.slot_of(db, key, 2) == 0 for number in range(2)
    }
    new = restore()
    adopt(new)
    carried = value(new, "select pgque.repartition('q', 'c', 3)")
    tick(new)
    found = []
    for slot in range(3):
        slots.claim(new, slot)
        found += slots.drain_slot(new, slot, 3)
    assert sorted(found) == sorted(expected)
    assert carried == len(expected)


def test_a_queue_without_consumers_keeps_what_is_not_ticked(
    db: Connection, restore: Restore
) -> None:
    make_queue(db, consumers=())
    send(db, "ticked")
    tick(db)
    send(db, "not ticked")
    new = restore()
    adopt(new)
    value(new, "select pgque.register_consumer('q', 'c')")
    tick(new)
    assert drain(new) == ["not ticked"]


def test_ticks_of_the_original_are_refused_after_adoption(db: Connection, restore: Restore) -> None:
    """Behind its last tick, events come again that were before it."""
    make_queue(db)
    send(db, "a")
    last = tick(db)
    new = restore()
    adopt(new)
    newest = tick(new)
    plan = "select slice_sql from pgque.tick_range_read_plan('q', %s, %s, 1)"
    with refused("PQ005", f"no tick {last} any more", f"Ticks {last + 1} to {newest}"):
        rows(new, plan, last, newest)


def test_a_database_that_was_not_restored_has_nothing_to_adopt(db: Connection) -> None:
    make_queue(db)
    send(db, "a")
    assert adopt(db) == 0
    tick(db)
    assert drain(db) == ["a"]


def test_installing_does_not_adopt(db: Connection, restore: Restore) -> None:
    make_queue(db)
    new = restore()
    new.execute(INSTALL_SQL.read_bytes())
    with refused("PQ018"):
        value(new, "select pgque.ticker()")


def test_only_an_admin_adopts(db: Connection) -> None:
    db.execute("set role pgque_reader")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        adopt(db)


def test_adoption_refuses_an_old_snapshot(db: Connection) -> None:
    db.execute("begin isolation level repeatable read")
    with refused("PQ013"):
        adopt(db)


def test_a_restored_database_tells_where_consumers_stand_before_it_is_adopted(
    db: Connection, restore: Restore
) -> None:
    """By that, what was stored after the dump is found."""
    make_queue(db)
    last_tick = "select last_tick from pgque.get_consumer_info('q', 'c')"

    new = restore()

    assert value(new, last_tick) == value(db, last_tick)


def test_an_adopted_database_has_a_lineage_of_its_own(db: Connection, restore: Restore) -> None:
    old = value(db, "select pgque.lineage()")
    new = restore()
    with refused("PQ018", "adopt_restored_database"):
        rows(new, "select pgque.lineage()")

    adopt(new)

    assert value(new, "select pgque.lineage()") not in (None, old)
    assert value(db, "select pgque.lineage()") == old


def test_an_old_dump_beside_the_original_gives_out_none_of_its_batch_ids(
    db: Connection, restore: Restore
) -> None:
    make_queue(db)
    new = restore()
    originals = set()
    for number in range(5):
        originals.add(open_batch(db, str(number)))
        finish(db, max(originals))

    adopt(new)

    assert open_batch(new, "a") > max(originals) + 999_000


def test_refreshing_every_materialized_view_halts_nothing(db: Connection) -> None:
    make_queue(db)
    lineage = value(db, "select pgque.lineage()")
    db.execute("refresh materialized view pgque.origin")
    send(db, "a")
    tick(db)
    assert (drain(db), adopt(db), value(db, "select pgque.lineage()")) == (["a"], 0, lineage)


def test_refreshing_before_adoption_loses_nothing_sent_since_the_restore(
    db: Connection, restore: Restore
) -> None:
    make_queue(db)
    new = restore()
    send(new, "since")
    new.execute("refresh materialized view pgque.origin")
    adopt(new)
    tick(new)
    assert drain(new) == ["since"]


def test_refreshing_after_adoption_halts_nothing(db: Connection, restore: Restore) -> None:
    make_queue(db)
    send(db, "a")
    new = restore()
    adopt(new)
    new.execute("refresh materialized view pgque.origin")
    tick(new)
    assert drain(new) == ["a"]
