"""A database that pg_restore or pg_upgrade brought elsewhere goes on where every consumer stood."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import INSTALL_SQL
from tests.support.queues import slots
from tests.support.queues.sql import Connection, connect, refused
from tests.support.queues.workers import next_of, register
from tests.support.servers.dumps import Restore, new_cluster, restoring, use_ids
from tests.support.servers.postgres import Postgres
from tests.support.servers.standbys import Replicas, replicas


@pytest.fixture(scope="module")
def cluster() -> Iterator[Postgres]:
    with new_cluster(INSTALL_SQL.read_bytes()) as made:
        yield made


@pytest.fixture
def db(db: Connection) -> Connection:
    """A database whose cluster is far ahead of the new one."""
    use_ids(db)
    return db


@pytest.fixture
def restore(
    server: Postgres, cluster: Postgres, database_url: str, tmp_path: Path
) -> Iterator[Restore]:
    with restoring(server, database_url, cluster, tmp_path) as restore:
        yield restore


def adopt(db: Connection) -> int:
    return db.value("select pgque.adopt_restored_database()")


def settle(db: Connection, call: str, batch: int, payload: str) -> None:
    """Nacks the event with this payload, or gives it up."""
    sql = "array(select ev_id from pgque.get_batch_events(%s) where ev_data = %s)"
    db.value(f"select pgque.{call}".format(sql), batch, batch, payload)


NACK = "nack_batch(%s, {}, '0')"
GIVE_UP = "dead_letter_batch(%s, {}, 'broken')"


@pytest.mark.parametrize("options", [(), ("--rows-per-insert=2",)])
def test_each_consumer_gets_what_it_had_not_finished(
    db: Connection, restore: Restore, options: tuple[str, ...]
) -> None:
    db.make_queue(consumers=("fast", "slow", "open"), max_retries="1")
    db.publish("one", "again")
    batch = db.next_batch(consumer="fast")
    settle(db, NACK, batch, "again")
    db.finish(batch)
    db.drain(consumer="open")
    db.rotate()
    db.publish("two", "dead")
    batch = db.next_batch(consumer="fast")
    settle(db, GIVE_UP, batch, "dead")
    db.finish(batch)
    left_open = db.next_batch(consumer="open")
    db.send("three")
    with (writer := db.another()).transaction(force_rollback=True):
        writer.send("never")
        db.tick()
        db.send("four")
        new = restore(*options)

    assert new.value(
        "select pg_snapshot_xmax(pg_current_snapshot()) < min(pg_snapshot_xmax(tick_snapshot))"
        " from pgque.tick"
    ), "the new cluster is not behind"
    assert adopt(new) > 0
    with refused("PQ003"):
        new.finish(left_open)
    new.tick()
    got = {name: new.drain(consumer=name) for name in ("fast", "slow", "open")}
    assert got == {
        "fast": ["three", "four"],
        "slow": ["one", "again", "two", "dead", "three", "four"],
        "open": ["two", "dead", "three", "four"],
    }
    assert new.rows("select ev_data from pgque.dead_letter") == [("dead",)]
    new.value("select pgque.maint_retry_events()")
    new.tick()
    assert {name: new.drain(consumer=name) for name in got} == {
        "fast": ["again"],
        "slow": [],
        "open": [],
    }


def test_an_event_given_back_before_the_dump_and_after_it_comes_again_once(
    q: Connection, restore: Restore
) -> None:
    batch = q.open_batch("again", "dead")
    settle(q, NACK, batch, "again")
    settle(q, GIVE_UP, batch, "dead")
    new = restore()
    adopt(new)
    batch = new.open_batch()
    assert new.payloads(batch) == ["again", "dead"]
    new.value("select pgque.maint_retry_events()")
    settle(new, NACK, batch, "again")
    assert new.rows("select replayed, failed from pgque.dlq_replay_all('q')") == [(0, 1)]
    new.finish(batch)
    new.value("select pgque.maint_retry_events()")
    assert new.rows("select replayed, failed from pgque.dlq_replay_all('q')") == [(1, 0)]
    assert new.received() == ["again", "dead"]


def test_ids_times_and_retry_counts_are_kept(db: Connection, restore: Restore) -> None:
    db.make_queue(consumers=("c", "other"))
    batch = db.open_batch("again", "b")
    settle(db, NACK, batch, "again")
    db.finish(batch)
    db.value("select pgque.maint_retry_events()")
    columns = "ev_id, ev_time, ev_retry, ev_data"
    table = f"event_{db.queue_id()}"
    before = db.rows(f"select {columns} from pgque.{table} order by ev_id, ev_retry")
    new = restore()
    adopt(new)
    new.tick()
    batches = [new.next_batch(consumer=name) for name in ("c", "other")]
    read = f"select {columns} from pgque.get_batch_events(%s)"
    (again,), others = (new.rows(read, batch) for batch in batches)
    assert (again[2], sorted([again, *others], key=str)) == (1, sorted(before, key=str))


def test_before_adoption_nothing_compares_transactions(db: Connection, restore: Restore) -> None:
    """What was stored after the dump is found by where consumers stand."""
    db.make_queue(consumers=("c", "other"), rotation_period="1 microsecond")
    last = db.publish("old")
    db.drain(consumer="other")
    db.next_batch()
    position = "select last_tick from pgque.get_consumer_info('q', 'c')"
    incarnation = db.value("select pgque.incarnation()")
    new = restore()
    new.execute(INSTALL_SQL.read_bytes())  # does not adopt
    assert new.value(position) == db.value(position)
    for call in (
        "ticker()",
        "ticker('q')",
        "ticker('q', 100, now(), 100)",
        "window_ticks('q', now() - interval '1 day', now())",
        "maint()",
        "maint_rotate_tables_step1('q')",
        f"get_batch_events({new.next_batch()})",
        f"batch_read_plan({new.next_batch()}, 1)",
        "repartition('q', 'c', 2)",
        "lineage()",
    ):
        with refused("PQ018", "adopt_restored_database"):
            new.rows(f"select pgque.{call}")
    with new.transaction(), new.transaction():
        new.send("early")
    adopt(new)
    newest = new.tick()
    assert (new.drain(), new.drain(consumer="other")) == (["old", "early"], ["early"])
    assert new.value("select pgque.incarnation()") not in (None, incarnation)
    assert db.value("select pgque.incarnation()") == incarnation
    # Behind the original's last tick, events come again that were before it.
    plan = "select slice_sql from pgque.tick_range_read_plan('q', %s, %s, 1)"
    with refused("PQ005", f"no tick {last} any more", f"Ticks {last + 1} to {newest}"):
        new.rows(plan, last, newest)


def test_the_queue_runs_on_after_adoption(q: Connection, restore: Restore) -> None:
    """Beside an original that goes on too, whose batch ids it gives out never again."""
    q.make_queue("alone", consumers=())
    q.publish("ticked", queue="alone")
    q.send("not ticked", queue="alone")
    q.send("a")
    new = restore()
    originals = set()
    for number in range(5):
        originals.add(q.open_batch(str(number)))
        q.finish(max(originals))
    adopt(new)
    new.value("select pgque.register_consumer('alone', 'c')")
    assert new.received("alone") == ["not ticked"]
    got = []
    for number in range(8):
        assert new.open_batch(str(number)) > max(originals) + 999_000
        got += new.drain()
        assert new.rotate() == 1
        new.compact_ticks()
    assert (got, new.stored_payloads()) == (["a", *map(str, range(8))], {"6", "7"})


def test_a_transaction_that_commits_meanwhile_takes_no_event_away(
    q: Connection, restore: Restore
) -> None:
    q.send("a")
    new = restore()
    table = new.value("select queue_data_pfx from pgque.queue")
    with new.transaction():
        new.execute(f"lock table {table} in access share mode".encode())
        adopting = new.blocked(adopt)
        new.another().value("select pg_current_xact_id()::text")
    assert adopting.result() == 1
    new.tick()
    assert new.drain() == ["a"]


def test_it_can_be_restored_again(server: Postgres, q: Connection, restore: Restore) -> None:
    q.send("a")
    for into in (server, server):
        again = restore(into=into)
        with refused("PQ018"):
            again.value("select pgque.ticker()")
        adopt(again)
        assert again.received() == ["a"]


def test_subconsumers_get_their_open_batches_back(bare: Connection, restore: Restore) -> None:
    register(bare, "one")
    register(bare, "two")
    for text in ("done", "held"):
        bare.publish(text)
        batch = next_of(bare, "one")
        if text == "done":
            bare.finish(batch)
    bare.send("unread")
    new = restore()
    adopt(new)
    new.tick()
    assert new.payloads(next_of(new, "two")) == ["held", "unread"]


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
    while new.value(change):
        for slot in range(2):
            slots.claim(new, slot)
            found += slots.drain_slot(new, slot)
        new.tick()
    new.tick()
    for slot in range(3):
        slots.claim(new, slot)
        found += slots.drain_slot(new, slot, 3)
    assert sorted(found) == sorted(f"{key}: {number}" for key in lacking for number in range(2))


def test_a_database_that_was_not_restored_has_nothing_to_adopt(q: Connection) -> None:
    incarnation = q.value("select pgque.incarnation()")
    q.execute("refresh materialized view pgque.origin")  # as somebody may for all views
    q.send("a")
    assert (adopt(q), q.value("select pgque.incarnation()")) == (0, incarnation)
    assert q.received() == ["a"]
    q.hold_snapshot()
    with refused("PQ013"):
        adopt(q)
    q.rollback()
    q.execute("set role pgque_reader")
    with refused("42501"):
        adopt(q)


def test_refreshing_the_view_around_adoption_is_harmless(q: Connection, restore: Restore) -> None:
    q.send("before")
    new = restore()
    new.send("since")
    new.execute("refresh materialized view pgque.origin")
    adopt(new)
    new.execute("refresh materialized view pgque.origin")
    assert new.received() == ["before", "since"]


@pytest.fixture
def servers() -> Iterator[Replicas]:
    with replicas() as made:
        yield made


@pytest.mark.server(18)
@pytest.mark.parametrize("is_promoted", [False, True])
def test_an_upgraded_cluster_goes_on(servers: Replicas, is_promoted: bool) -> None:
    old = servers.primary(16)
    if is_promoted:
        old = servers.standby(old)
        old.promote()
    with connect(old.url) as db:
        db.make_queue()
        batch = db.open_batch("open")
        db.send("unread")
        incarnation = db.value("select pgque.incarnation()")
    old.stop()

    new = servers.new().start()
    new.stop()
    new.run("pg_checksums", "--disable", "--pgdata=../data")
    new.run(
        "pg_upgrade",
        *(f"--old-bindir={old.binary('postgres').parent}", f"--old-datadir={old.data}"),
        *("--new-datadir=../data", "--username=postgres", f"--socketdir={new.data_dir}"),
    )
    new.start()
    with connect(new.url) as db:
        assert (db.next_batch(), db.payloads(batch)) == (batch, ["open"])
        db.finish(batch)
        assert db.payloads(db.open_batch()) == ["unread"]
        assert (db.value("select pgque.incarnation()") != incarnation) == is_promoted
