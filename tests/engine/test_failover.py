"""A server that goes on without the last transactions gives out no id of a lost batch again."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from tests.conftest import INSTALL_SQL
from tests.support.queues.sql import Connection, connect, refused
from tests.support.servers.databases import owned_database
from tests.support.servers.postgres import Postgres
from tests.support.servers.standbys import Replicas, cut_off, replicas, wait_for

CROWD = tuple(f"c{number}" for number in range(8))
TIMELINE = "select last_value >> 32 from pgque.lineage_seq"
FINGERPRINT = "select pgque.tick_fingerprint('q', %s)"
CLAIM = """
select batch_id from pgque.claim_ticks(
    'q', 'c', 'me', '1 minute', %s, %s, i_from_fingerprint => %s, i_to_fingerprint => %s)
"""


def incarnation(db: Connection) -> Any:
    return db.value("select pgque.incarnation()")


def drained(db: Connection) -> dict[int, list[str]]:
    """Consumes all batches that are there; returns the payloads by batch id."""
    found = {}
    while (batch := db.next_batch()) is not None:
        found[batch] = db.payloads(batch)
        db.finish(batch)
    return found


def lose_a_tail(db: Connection, count: int = 20) -> set[int]:
    """What a primary does after its standby was cut off; returns the ids of its batches."""
    ids: set[int] = set()
    for number in range(count):
        db.publish(f"lost {number}")
        ids |= drained(db).keys()
    return ids


class Database:
    """A database of a primary that was lost, which nobody has touched on the promoted standbys.

    Args:
        servers: the primary, and two standbys as soon as they are there.
        name: of the database.
        stack: closes the connections.
    """

    def __init__(self, servers: list[Postgres], name: str, stack: ExitStack) -> None:
        self._servers, self._name, self._stack = servers, name, stack
        old = self.open(0)
        old.make_queue(consumers=("c", "other", *CROWD))
        old.make_queue("external", external_ticker="true")
        self.survived = old.publish("done")
        self.finished = drained(old)
        self.left_open = old.next_batch(consumer="other")
        old.send("survivor")
        self.incarnation = incarnation(old)

    def open(self, server: int = 1) -> Connection:
        """Connects to the primary (0), or to one of the standbys (1 and 2)."""
        url = self._servers[server].database_url(self._name)
        return self._stack.enter_context(connect(url))

    def lose(self) -> None:
        """What the primary does after both standbys are cut off, and a session on one of them."""
        self.survivor = self.open()
        for _ in range(10):
            with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
                self.survivor.next_batch(consumer="c0")
        assert incarnation(self.survivor) == self.incarnation
        old = self.open(0)
        self.lost_tick = self.survived + 1
        self.lost = lose_a_tail(old) | {old.next_batch(consumer="c0")}
        self.fingerprints = [
            old.value(FINGERPRINT, tick) for tick in (self.survived, self.lost_tick)
        ]


@pytest.fixture(scope="module")
def databases(request: pytest.FixtureRequest) -> Iterator[Iterator[Database]]:
    """A database for each test, since the first one to touch it ends its being untouched."""
    items = [each for each in request.session.items if each.path == request.path]
    count = sum("database" in getattr(each, "fixturenames", ()) for each in items)
    with replicas() as made, ExitStack() as stack:
        servers = [made.primary()]
        with connect(servers[0].database_url("template1")) as db:
            for number in range(count):
                db.execute(f"create database database_{number} template postgres".encode())
        found = [Database(servers, f"database_{number}", stack) for number in range(count)]
        servers += [made.standby(servers[0]) for _ in range(2)]
        for standby in servers[1:]:
            cut_off(standby, servers[0])
        for database in found:
            database.lose()
        for standby in servers[1:]:
            standby.promote()
        yield iter(found)


@pytest.fixture
def database(databases: Iterator[Database]) -> Database:
    return next(databases)


def test_no_batch_id_is_given_out_again_and_all_that_survived_is_delivered(
    database: Database,
) -> None:
    new = database.open()
    new.publish("new")
    found = drained(new)
    assert not found.keys() & (database.finished.keys() | database.lost | {database.left_open})
    assert [text for batch in found.values() for text in batch] == ["survivor", "new"]
    assert incarnation(new) != database.incarnation
    assert (new.next_batch(consumer="other"), new.payloads(database.left_open)) == (
        database.left_open,
        ["done"],
    )


def test_opened_by_a_reader_before_the_first_tick_a_batch_has_a_new_id(database: Database) -> None:
    """Each way to open a batch takes its id from next_batch_id."""
    new = database.open()
    new.execute("set role pgque_reader")
    found = new.next_batch(consumer="c0")
    assert found - max(database.lost) > 1_000_000
    assert new.payloads(found) == ["done"]
    assert incarnation(new) != database.incarnation


@pytest.mark.parametrize("call", ["ticker()", "ticker('q')", "ticker('external', 100, now(), 100)"])
def test_a_tick_follows_the_promotion(database: Database, call: str) -> None:
    new = database.open()
    assert new.value(TIMELINE) == 1
    new.value(f"select pgque.{call}")
    assert new.value(TIMELINE) == 2


def test_two_promotions_from_one_origin_are_two_incarnations(database: Database) -> None:
    timeline = "select left(pg_walfile_name(pg_current_wal_lsn()), 8)"
    found = [database.open(server) for server in range(3)]
    assert [db.value(timeline) for db in found] == ["00000001", "00000002", "00000002"]
    told = [incarnation(db) for db in found]
    assert len(set(told)) == 3
    assert told == [incarnation(database.open(server)) for server in range(3)]
    assert found[1].open_batch("a") != found[2].open_batch("a")


def test_a_session_that_outlives_the_promotion_follows_it(database: Database) -> None:
    assert database.survivor.next_batch(consumer="c0") > max(database.lost) + 1_000_000
    assert incarnation(database.survivor) != database.incarnation


def test_whoever_notices_the_promotion_in_a_long_transaction_holds_up_nobody(
    database: Database,
) -> None:
    first, second = database.open(), database.open()
    second.execute("set lock_timeout = '5s'")
    with first.transaction(force_rollback=True):
        noticed = first.next_batch(consumer="c0")
        found = second.next_batch(consumer="c1")
        seen = incarnation(second)
    assert max(database.lost) + 1_000_000 < noticed < found
    assert (incarnation(first), first.next_batch(consumer="c0")) == (seen, found + 1)


def test_many_that_notice_the_promotion_at_once_begin_one_incarnation(database: Database) -> None:
    connections = {name: database.open() for name in CROWD}
    first, watcher = database.open(), database.open()
    active = (
        "select count(*) = 8 from pg_stat_activity"
        " where state = 'active' and query like %s and datname = current_database()"
    )
    with ThreadPoolExecutor(len(CROWD)) as pool:
        with first.transaction():
            first.rows("select from pgque.lineage_lock for update")
            drawing = [
                pool.submit(Connection.next_batch, connections[c], consumer=c) for c in CROWD
            ]
            wait_for(watcher, active, "%next_batch%")
            assert not any(each.done() for each in drawing)
        drawn = sorted(each.result() for each in drawing)
    assert drawn == list(range(drawn[0], drawn[0] + len(CROWD)))
    assert drawn[0] > 1_000_000


def test_a_tick_that_was_lost_is_told_from_the_one_that_has_its_number(database: Database) -> None:
    survived, lost = database.survived, database.lost_tick
    known, of_lost = database.fingerprints
    new = database.open()
    new.send("new")
    assert new.tick() == lost
    assert new.value(FINGERPRINT, survived) == known
    with refused("PQ023", f"tick {lost}", "promoted", "begin a new record"):
        new.value(CLAIM, survived, lost, known, of_lost)
    with refused("PQ023", f"tick {lost}"):
        new.value(CLAIM, lost, lost, of_lost, of_lost)
    batch = new.value(CLAIM, survived, lost, known, new.value(FINGERPRINT, lost))
    assert new.payloads(batch) == ["survivor", "new"]


@pytest.fixture
def servers() -> Iterator[Replicas]:
    with replicas() as made:
        yield made


def test_recovery_to_a_point_in_time_begins_a_life_of_its_own(servers: Replicas) -> None:
    primary = servers.primary()
    archive = primary.data_dir / "archive"
    archive.mkdir()
    archive.chmod(0o777)
    primary.configure(archive_mode="on", archive_command=f"cp %p {archive}/%f")
    primary.stop()
    primary.start()
    recovered = servers.new()
    recovered.back_up(primary, "--checkpoint=fast")
    with connect(primary.url) as old:
        old.make_queue(consumers=("c", "other"))
        old.publish("a")
        kept_open = old.next_batch(consumer="other")
        old.value("select pg_create_restore_point('before the accident')::text")
        lost = lose_a_tail(old)
        known = incarnation(old)
        old.value("select pg_switch_wal()::text")
        wait_for(old, "select last_archived_wal is not null from pg_stat_archiver")
    primary.stop()

    recovered.configure(
        archive_mode="off",
        restore_command=f"cp {archive}/%f %p",
        recovery_target_name="before the accident",
        recovery_target_action="promote",
    )
    (recovered.data / "recovery.signal").touch()
    recovered.start()
    with connect(recovered.url) as new:
        wait_for(new, "select not pg_is_in_recovery()")
        new.publish("b")
        found = drained(new)
        assert [text for batch in found.values() for text in batch] == ["a", "b"]
        assert not found.keys() & (lost | {kept_open})
        assert new.next_batch(consumer="other") == kept_open
        assert incarnation(new) != known


def test_restarts_and_crashes_keep_the_incarnation_and_a_snapshot_of_the_disk_needs_a_new_one(
    servers: Replicas,
) -> None:
    primary = servers.primary()
    with connect(primary.url) as db:
        db.make_queue()
        known, batch = incarnation(db), db.open_batch("a")
    for mode in ("fast", "immediate"):
        primary.stop(mode)
        snapshot = servers.copy(primary) if mode == "immediate" else None
        primary.start()
        with connect(primary.url) as db:
            assert (incarnation(db), db.next_batch()) == (known, batch)
            db.finish(batch)
            before, batch = batch, db.open_batch("a")
            assert before < batch < before + 100
    with connect(primary.url) as db:
        lost = lose_a_tail(db)

    assert snapshot is not None
    snapshot.start()
    with connect(snapshot.url) as new:
        assert incarnation(new) == known
        assert new.value("select pgque.renew_incarnation()") == incarnation(new) != known
        assert new.next_batch() == before  # which was open
        new.finish(before)
        new.publish("b")
        assert not drained(new).keys() & (lost | {batch})


def test_a_copy_by_template_has_an_incarnation_of_its_own_and_ids_when_asked(
    server: Any, q: Connection
) -> None:
    q.finish(q.open_batch("a"))
    name = q.info.dbname
    q.close()
    with connect(server.url) as administrator:
        administrator.execute(f"create database {name}_copy template {name}".encode())
        try:
            url = server.database_url
            with connect(url(name)) as original, connect(url(f"{name}_copy")) as copy:
                assert incarnation(copy) != (known := incarnation(original))
                assert copy.open_batch("b") == original.open_batch("b")
                copy.drain()
                copy.value("select pgque.renew_incarnation()")
                assert copy.open_batch("c") > original.open_batch("c") + 1_000_000
                assert incarnation(original) == known
        finally:
            administrator.execute(f"drop database {name}_copy with (force)".encode())


def test_a_server_that_does_not_tell_its_timeline_goes_on(server: Any) -> None:
    with owned_database(server) as owned, connect(owned.superuser_url) as superuser:
        superuser.execute("revoke execute on function pg_walfile_name(pg_lsn) from public")
        with connect(owned.owner_url) as db:
            db.execute(INSTALL_SQL.read_bytes())
            db.make_queue()
            known = incarnation(db)
            batch = db.open_batch("a")
            assert (db.payloads(batch), incarnation(db)) == (["a"], known)
            assert db.value("select pgque.renew_incarnation()") == incarnation(db) != known
            db.finish(batch)
            assert db.open_batch("b") > batch + 1_000_000


def test_batches_of_a_database_that_stays_are_numbered_one_by_one(q: Connection) -> None:
    first = q.open_batch("a")
    assert q.events(first)
    q.finish(first)
    assert (q.open_batch("b"), q.drain()) == (first + 1, ["b"])
    assert q.rows("select 1 from pgque.lineage_lock") == [(1,)]
