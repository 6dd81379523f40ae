"""A server that goes on without the last transactions gives out no id of a lost batch again."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import psycopg
import pytest

from tests.conftest import INSTALL_SQL
from tests.support.databases import owned_database
from tests.support.queues import Connection, connect, refused
from tests.support.replicas import Replicas, cut_off, replicas, wait_for

Open = Callable[[], Connection]


class Servers(NamedTuple):
    """Opens connections to a database of the primary, and of both standbys."""

    primary: Open
    standby: Open
    sibling: Open


# Works on the primary, then yields: the standbys are cut off. What the primary does after that is
# lost. Then it yields once more: the standbys are promoted.
Story = Callable[[Servers], Iterator[None]]
STORIES: dict[str, Story] = {}


def story(name: str, *arguments: Any) -> Callable[[Callable[..., Iterator[None]]], Any]:
    def add(told: Callable[..., Iterator[None]]) -> Callable[..., Iterator[None]]:
        STORIES[name] = partial(told, *arguments) if arguments else told
        return told

    return add


def lineage(db: Connection) -> Any:
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


@story("no batch id is given out again, and all that survived is delivered")
def _(servers: Servers) -> Iterator[None]:
    old = servers.primary()
    old.make_queue(consumers=("c", "other"))
    old.publish("done")
    finished = drained(old)
    left_open = old.next_batch(consumer="other")
    old.send("survivor")
    yield
    lost = lose_a_tail(old)
    yield
    new = servers.standby()
    new.publish("new")
    found = drained(new)
    assert not found.keys() & (finished.keys() | lost | {left_open})
    assert [text for batch in found.values() for text in batch] == ["survivor", "new"]
    assert lineage(new) != lineage(old)
    assert (new.next_batch(consumer="other"), new.payloads(left_open)) == (left_open, ["done"])


@story("opened by a reader before the first tick, a batch has a new id")
def _(servers: Servers) -> Iterator[None]:
    """Each way to open a batch takes its id from next_batch_id."""
    old = servers.primary()
    old.make_queue()
    old.publish("a")
    yield
    lost = old.next_batch()
    yield
    new = servers.standby()
    new.execute("set role pgque_reader")
    found = new.next_batch()
    assert found - lost > 1_000_000
    assert new.payloads(found) == ["a"]
    assert lineage(new) != lineage(old)


def tick_by(call: str, servers: Servers) -> Iterator[None]:
    old = servers.primary()
    old.make_queue()
    old.make_queue("external", external_ticker="true")
    yield
    yield
    new = servers.standby()
    timeline = "select last_value >> 32 from pgque.lineage_seq"
    assert new.value(timeline) == 1
    new.value(f"select pgque.{call}")
    assert new.value(timeline) == 2


for call in ("ticker()", "ticker('q')", "ticker('external', 100, now(), 100)"):
    story(f"{call} follows the promotion", call)(tick_by)


@story("two promotions from one origin are two lineages")
def _(servers: Servers) -> Iterator[None]:
    servers.primary().make_queue()
    yield
    yield
    timeline = "select left(pg_walfile_name(pg_current_wal_lsn()), 8)"
    assert [to().value(timeline) for to in servers] == ["00000001", "00000002", "00000002"]
    found = [lineage(to()) for to in servers]
    assert len(set(found)) == 3
    assert found == [lineage(to()) for to in servers]
    assert servers.standby().open_batch("a") != servers.sibling().open_batch("a")


@story("a session that outlives the promotion follows it")
def _(servers: Servers) -> Iterator[None]:
    old = servers.primary()
    old.make_queue()
    old.publish("a")
    yield
    survivor = servers.standby()
    for _ in range(10):
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            survivor.next_batch()
    assert lineage(survivor) == lineage(old)
    lost = old.next_batch()
    yield
    assert survivor.next_batch() > lost + 1_000_000
    assert lineage(survivor) != lineage(old)


@story("whoever notices the promotion in a long transaction holds up nobody")
def _(servers: Servers) -> Iterator[None]:
    old = servers.primary()
    old.make_queue(consumers=("c", "other"))
    old.publish("a")
    yield
    lost = old.next_batch(consumer="other")
    yield
    first, second = servers.standby(), servers.standby()
    second.execute("set lock_timeout = '5s'")
    with first.transaction(force_rollback=True):
        noticed = first.next_batch()
        found = second.next_batch(consumer="other")
        seen = lineage(second)
    assert lost + 1_000_000 < noticed < found
    assert (lineage(first), first.next_batch()) == (seen, found + 1)


@story("many that notice the promotion at once begin one life")
def _(servers: Servers) -> Iterator[None]:
    consumers = [f"c{number}" for number in range(8)]
    old = servers.primary()
    old.make_queue(consumers=consumers)
    old.publish("a")
    yield
    yield
    connections = {name: servers.standby() for name in consumers}
    first, watcher = servers.standby(), servers.standby()
    active = (
        "select count(*) = 8 from pg_stat_activity"
        " where state = 'active' and query like %s and datname = current_database()"
    )
    with ThreadPoolExecutor(len(consumers)) as pool:
        with first.transaction():
            first.rows("select from pgque.lineage_lock for update")
            drawing = [
                pool.submit(Connection.next_batch, connections[c], consumer=c) for c in consumers
            ]
            wait_for(watcher, active, "%next_batch%")
            assert not any(each.done() for each in drawing)
        drawn = sorted(each.result() for each in drawing)
    assert drawn == list(range(drawn[0], drawn[0] + len(consumers)))
    assert drawn[0] > 1_000_000


@story("a tick that was lost is told from the one that has its number")
def _(servers: Servers) -> Iterator[None]:
    old = servers.primary()
    old.make_queue()
    survived = old.publish("a")
    yield
    lost = old.publish("lost")
    fingerprint = "select pgque.tick_fingerprint('q', %s)"
    known = {number: old.value(fingerprint, number) for number in (survived, lost)}
    yield
    new = servers.standby()
    new.send("new")
    assert new.tick() == lost
    claim = """
    select batch_id from pgque.claim_ticks(
        'q', 'c', 'me', '1 minute', %s, %s, i_from_fingerprint => %s, i_to_fingerprint => %s)
    """
    assert new.value(fingerprint, survived) == known[survived]
    with refused("PQ023", f"tick {lost}", "promoted", "begin a new record"):
        new.value(claim, survived, lost, known[survived], known[lost])
    with refused("PQ023", f"tick {lost}"):
        new.value(claim, lost, lost, known[lost], known[lost])
    batch = new.value(claim, survived, lost, known[survived], new.value(fingerprint, lost))
    assert new.payloads(batch) == ["new"]


@pytest.fixture(scope="module")
def promoted(server: Any) -> Iterator[dict[str, Iterator[None]]]:
    """All stories up to the promotion, each in a database of its own on the same servers."""
    with replicas(server) as made, ExitStack() as stack:

        def opening(replica: Any, database: str) -> Open:
            return lambda: stack.enter_context(connect(replica.url(database)))

        primary = made.primary()
        names = {name: f"story_{number}" for number, name in enumerate(STORIES)}
        with connect(primary.url("template1")) as db:
            for name in names.values():
                db.execute(f"create database {name} template postgres".encode())
        later: list[Any] = []  # the standbys are made when all have begun
        told = {
            name: STORIES[name](
                Servers(
                    opening(primary, database),
                    lambda database=database: opening(later[0], database)(),  # type: ignore[misc]
                    lambda database=database: opening(later[1], database)(),  # type: ignore[misc]
                )
            )
            for name, database in names.items()
        }
        for each in told.values():
            next(each)
        later += [made.standby(primary) for _ in range(2)]
        for standby in later:
            cut_off(standby, primary)
        for each in told.values():
            next(each)
        for standby in later:
            standby.promote()
        yield told


@pytest.mark.parametrize("name", STORIES)
def test_after_a_promotion(promoted: dict[str, Iterator[None]], name: str) -> None:
    assert next(promoted[name], "the end") == "the end"


@pytest.fixture
def servers(server: Any) -> Iterator[Replicas]:
    with replicas(server) as made:
        yield made


def test_recovery_to_a_point_in_time_begins_a_life_of_its_own(servers: Replicas) -> None:
    primary = servers.primary()
    archive = primary.folder / "archive"
    archive.mkdir()
    archive.chmod(0o777)
    primary.configure(f"archive_mode = on\narchive_command = 'cp %p {archive}/%f'\n")
    primary.stop()
    primary.start()
    recovered = servers.new()
    recovered.back_up(primary, "--checkpoint=fast")
    with connect(primary.url()) as old:
        old.make_queue(consumers=("c", "other"))
        old.publish("a")
        kept_open = old.next_batch(consumer="other")
        old.value("select pg_create_restore_point('before the accident')::text")
        lost = lose_a_tail(old)
        known = lineage(old)
        old.value("select pg_switch_wal()::text")
        wait_for(old, "select last_archived_wal is not null from pg_stat_archiver")
    primary.stop()

    recovered.configure(
        f"archive_mode = off\nrestore_command = 'cp {archive}/%f %p'\n"
        "recovery_target_name = 'before the accident'\nrecovery_target_action = 'promote'\n"
    )
    (recovered.data / "recovery.signal").touch()
    recovered.start()
    with connect(recovered.url()) as new:
        wait_for(new, "select not pg_is_in_recovery()")
        new.publish("b")
        found = drained(new)
        assert [text for batch in found.values() for text in batch] == ["a", "b"]
        assert not found.keys() & (lost | {kept_open})
        assert new.next_batch(consumer="other") == kept_open
        assert lineage(new) != known


def test_restarts_and_crashes_keep_the_lineage_and_a_snapshot_of_the_disk_needs_a_new_one(
    servers: Replicas,
) -> None:
    primary = servers.primary()
    with connect(primary.url()) as db:
        db.make_queue()
        known, batch = lineage(db), db.open_batch("a")
    for mode in ("fast", "immediate"):
        primary.stop(mode)
        snapshot = servers.copy(primary) if mode == "immediate" else None
        primary.start()
        with connect(primary.url()) as db:
            assert (lineage(db), db.next_batch()) == (known, batch)
            db.finish(batch)
            before, batch = batch, db.open_batch("a")
            assert before < batch < before + 100
    with connect(primary.url()) as db:
        lost = lose_a_tail(db)

    assert snapshot is not None
    snapshot.start()
    with connect(snapshot.url()) as new:
        assert lineage(new) == known
        assert new.value("select pgque.renew_incarnation()") == lineage(new) != known
        assert new.next_batch() == before  # which was open
        new.finish(before)
        new.publish("b")
        assert not drained(new).keys() & (lost | {batch})


def test_a_copy_by_template_has_a_lineage_of_its_own_and_ids_when_asked(
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
                assert lineage(copy) != (known := lineage(original))
                assert copy.open_batch("b") == original.open_batch("b")
                copy.drain()
                copy.value("select pgque.renew_incarnation()")
                assert copy.open_batch("c") > original.open_batch("c") + 1_000_000
                assert lineage(original) == known
        finally:
            administrator.execute(f"drop database {name}_copy with (force)".encode())


def test_a_server_that_does_not_tell_its_timeline_goes_on(server: Any) -> None:
    with owned_database(server) as owned, connect(owned.superuser_url) as superuser:
        superuser.execute("revoke execute on function pg_walfile_name(pg_lsn) from public")
        with connect(owned.owner_url) as db:
            db.execute(INSTALL_SQL.read_bytes())
            db.make_queue()
            known = lineage(db)
            batch = db.open_batch("a")
            assert (db.payloads(batch), lineage(db)) == (["a"], known)
            assert db.value("select pgque.renew_incarnation()") == lineage(db) != known
            db.finish(batch)
            assert db.open_batch("b") > batch + 1_000_000


def test_batches_of_a_database_that_stays_are_numbered_one_by_one(q: Connection) -> None:
    first = q.open_batch("a")
    assert q.events(first)
    q.finish(first)
    assert (q.open_batch("b"), q.drain()) == (first + 1, ["b"])
    assert q.rows("select 1 from pgque.lineage_lock") == [(1,)]
