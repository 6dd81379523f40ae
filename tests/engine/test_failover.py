"""A server that goes on without the last transactions gives out no id of a lost batch again."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.conftest import INSTALL_SQL
from tests.support.databases import owned_database
from tests.support.queues import (
    Connection,
    connect,
    drain,
    events,
    finish,
    make_queue,
    next_batch,
    open_batch,
    payloads,
    refused,
    rows,
    send,
    tick,
    value,
)
from tests.support.replicas import Replica, Replicas, cut_off, replicas, wait_for

Connect = Callable[..., Connection]


@pytest.fixture
def servers(server: Any) -> Iterator[Replicas]:
    with replicas(server) as made:
        yield made


@pytest.fixture
def to() -> Iterator[Connect]:
    """Opens a connection to a server; closed before the servers end."""
    with ExitStack() as stack:
        yield lambda replica, database="postgres": stack.enter_context(
            connect(replica.url(database))
        )


def lineage(db: Connection) -> Any:
    return value(db, "select pgque.lineage()")


def drained(db: Connection, consumer: str = "c") -> dict[int, list[str]]:
    """Consumes all batches that are there; returns the payloads by batch id."""
    found = {}
    while (batch := next_batch(db, consumer=consumer)) is not None:
        found[batch] = payloads(db, batch)
        finish(db, batch)
    return found


def lose_a_tail(db: Connection, count: int = 20) -> set[int]:
    """What a primary does after its standby was cut off; returns the ids of its batches."""
    ids: set[int] = set()
    for number in range(count):
        send(db, f"lost {number}")
        tick(db)
        ids |= drained(db).keys()
    return ids


def test_a_promoted_standby_gives_out_no_batch_id_again_and_delivers_all_that_survived(
    servers: Replicas, to: Connect
) -> None:
    primary = servers.primary()
    old = to(primary)
    make_queue(old, consumers=("c", "other"))
    send(old, "done")
    tick(old)
    finished = drained(old)
    left_open = next_batch(old, consumer="other")
    send(old, "survivor")
    standby = servers.standby(primary)
    cut_off(standby, primary)
    lost = lose_a_tail(old)

    standby.promote()
    new = to(standby)
    send(new, "new")
    tick(new)
    found = drained(new)

    assert not found.keys() & (finished.keys() | lost | {left_open})
    assert [text for batch in found.values() for text in batch] == ["survivor", "new"]
    assert lineage(new) != lineage(old)
    assert (next_batch(new, consumer="other"), payloads(new, left_open)) == (left_open, ["done"])


WAYS_TO_DRAW = {
    "next_batch": "select pgque.next_batch('q', 'c')",
    "next_batch_custom": "select batch_id from pgque.next_batch_custom('q', 'c', null, null, null)",
    "next_batch_info": "select batch_id from pgque.next_batch_info('q', 'c')",
    "claim_batch": "select batch_id from pgque.claim_batch('q', 'c', 'me')",
    "claim_ticks": "select batch_id from pgque.claim_ticks('q', 'c', 'me', '1 minute', 1, 2)",
    "receive": "select batch_id from pgque.receive('q', 'c')",
    "a subconsumer": "select pgque.next_batch('q', 'team', 'one')",
    "claim_coop": "select batch_id from pgque.claim_coop('q', 'team', 'one', 'me')",
    "receive_coop": "select batch_id from pgque.receive_coop('q', 'team', 'one')",
    "a slot": "select batch_id from pgque.receive_partitioned('q', 'parted', 0, 1, 'me')",
}


def test_a_batch_that_is_opened_before_the_first_tick_has_a_new_id(
    servers: Replicas, to: Connect
) -> None:
    """Each way in a database of its own, since the first one counts for all."""
    primary = servers.primary()
    with connect(primary.url()) as template:
        make_queue(template)
        value(template, "select pgque.register_subconsumer('q', 'team', 'one')")
        value(template, "select pgque.subscribe_slot('q', 'parted', 0, 1)")
        send(template, "a")
        tick(template)
    names = {way: f"way_{number}" for number, way in enumerate(WAYS_TO_DRAW)}
    for name in names.values():
        with connect(primary.url("template1")) as db:
            db.execute(f"create database {name} template postgres".encode())
    standby = servers.standby(primary)
    cut_off(standby, primary)

    def draw(replica: Replica) -> dict[str, int]:
        drawn = {}
        for way, name in names.items():
            db = to(replica, name)
            if way == "a slot":
                rows(db, "select * from pgque.claim_slot('q', 'parted', 0, 'me')")
            db.execute("set role pgque_reader")
            drawn[way] = value(db, WAYS_TO_DRAW[way])
        return drawn

    lost = draw(primary)
    standby.promote()
    found = draw(standby)

    assert {way for way in names if found[way] - lost[way] < 1_000_000} == set()
    for way, name in names.items():
        db = to(standby, name)
        assert payloads(db, found[way]) == ["a"], way
        assert lineage(db) != lineage(to(primary, name)), way


def test_every_form_of_the_ticker_follows_the_promotion(servers: Replicas, to: Connect) -> None:
    forms = {
        "every_queue": "pgque.ticker()",
        "one_queue": "pgque.ticker('q')",
        "external": "pgque.ticker('external', 100, now(), 100)",
    }
    primary = servers.primary()
    with connect(primary.url()) as template:
        make_queue(template)
        make_queue(template, "external", external_ticker="true")
    with connect(primary.url("template1")) as db:
        for name in forms:
            db.execute(f"create database {name} template postgres".encode())
    standby = servers.standby(primary)
    cut_off(standby, primary)
    standby.promote()

    timeline = "select last_value >> 32 from pgque.lineage_seq"
    for name, call in forms.items():
        db = to(standby, name)
        assert value(db, timeline) == 1
        value(db, f"select {call}")
        assert value(db, timeline) == 2, name


def test_two_promotions_from_one_origin_are_two_lineages(servers: Replicas, to: Connect) -> None:
    primary = servers.primary()
    make_queue(to(primary))
    standbys = [servers.standby(primary) for _ in range(2)]
    for standby in standbys:
        cut_off(standby, primary)
        standby.promote()

    timeline = "select left(pg_walfile_name(pg_current_wal_lsn()), 8)"
    assert {value(to(standby), timeline) for standby in standbys} == {"00000002"}
    found = [lineage(to(replica)) for replica in (primary, *standbys)]
    assert len(set(found)) == 3
    assert found == [lineage(to(replica)) for replica in (primary, *standbys)]
    batches = [open_batch(to(standby), "a") for standby in standbys]
    assert batches[0] != batches[1]


def test_a_session_that_outlives_the_promotion_follows_it(servers: Replicas, to: Connect) -> None:
    primary = servers.primary()
    old = to(primary)
    make_queue(old)
    send(old, "a")
    tick(old)
    standby = servers.standby(primary)
    cut_off(standby, primary)
    survivor = to(standby)
    for _ in range(10):
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            next_batch(survivor)
    assert lineage(survivor) == lineage(old)
    lost = next_batch(old)

    standby.promote()

    assert next_batch(survivor) > lost + 1_000_000
    assert lineage(survivor) != lineage(old)


def test_whoever_notices_the_promotion_in_a_long_transaction_holds_up_nobody(
    servers: Replicas, to: Connect
) -> None:
    primary = servers.primary()
    old = to(primary)
    make_queue(old, consumers=("c", "other"))
    send(old, "a")
    tick(old)
    standby = servers.standby(primary)
    cut_off(standby, primary)
    lost = next_batch(old, consumer="other")
    standby.promote()
    first, second = to(standby), to(standby)
    second.execute("set lock_timeout = '5s'")

    with first.transaction(force_rollback=True):
        noticed = next_batch(first)
        found = next_batch(second, consumer="other")
        seen = lineage(second)
    assert lost + 1_000_000 < noticed < found
    assert (lineage(first), next_batch(first)) == (seen, found + 1)


def test_many_that_notice_the_promotion_at_once_begin_one_life(
    servers: Replicas, to: Connect
) -> None:
    consumers = [f"c{number}" for number in range(8)]
    primary = servers.primary()
    old = to(primary)
    make_queue(old, consumers=consumers)
    send(old, "a")
    tick(old)
    standby = servers.standby(primary)
    cut_off(standby, primary)
    standby.promote()
    connections = {name: to(standby) for name in consumers}
    first, watcher = to(standby), to(standby)
    active = "select count(*) = 8 from pg_stat_activity where state = 'active' and query like %s"

    def draw(consumer: str) -> int:
        drawn: int = next_batch(connections[consumer], consumer=consumer)
        return drawn

    with ThreadPoolExecutor(len(consumers)) as pool:
        with first.transaction():
            rows(first, "select from pgque.lineage_lock for update")
            drawing = [pool.submit(draw, name) for name in consumers]
            wait_for(watcher, active, "%next_batch%")
            assert not any(each.done() for each in drawing)
        drawn = sorted(each.result() for each in drawing)
    assert drawn == list(range(drawn[0], drawn[0] + len(consumers)))
    assert drawn[0] > 1_000_000


def test_a_tick_that_was_lost_is_told_from_the_one_that_has_its_number(
    servers: Replicas, to: Connect
) -> None:
    primary = servers.primary()
    old = to(primary)
    make_queue(old)
    send(old, "a")
    survived = tick(old)
    standby = servers.standby(primary)
    cut_off(standby, primary)
    send(old, "lost")
    lost = tick(old)
    fingerprint = "select pgque.tick_fingerprint('q', %s)"
    known = {number: value(old, fingerprint, number) for number in (survived, lost)}
    standby.promote()
    new = to(standby)
    send(new, "new")
    assert tick(new) == lost

    claim = """
    select batch_id from pgque.claim_ticks(
        'q', 'c', 'me', '1 minute', %s, %s, i_from_fingerprint => %s, i_to_fingerprint => %s)
    """
    assert value(new, fingerprint, survived) == known[survived]
    with refused("PQ023", f"tick {lost}", "promoted", "begin a new record"):
        value(new, claim, survived, lost, known[survived], known[lost])
    with refused("PQ023", f"tick {lost}"):
        value(new, claim, lost, lost, known[lost], known[lost])
    batch = value(new, claim, survived, lost, known[survived], value(new, fingerprint, lost))
    assert payloads(new, batch) == ["new"]


def test_recovery_to_a_point_in_time_begins_a_life_of_its_own(
    servers: Replicas, to: Connect, tmp_path: Path
) -> None:
    primary = servers.primary()
    archive = primary.folder / "archive"
    archive.mkdir()
    archive.chmod(0o777)
    primary.configure(f"archive_mode = on\narchive_command = 'cp %p {archive}/%f'\n")
    primary.stop()
    primary.start()
    recovered = servers.new()
    recovered.back_up(primary, "--checkpoint=fast")
    old = to(primary)
    make_queue(old, consumers=("c", "other"))
    send(old, "a")
    tick(old)
    kept_open = next_batch(old, consumer="other")
    value(old, "select pg_create_restore_point('before the accident')::text")
    lost = lose_a_tail(old)
    value(old, "select pg_switch_wal()::text")
    wait_for(old, "select last_archived_wal is not null from pg_stat_archiver")
    primary.stop()

    recovered.configure(
        f"archive_mode = off\nrestore_command = 'cp {archive}/%f %p'\n"
        "recovery_target_name = 'before the accident'\nrecovery_target_action = 'promote'\n"
    )
    (recovered.data / "recovery.signal").touch()
    recovered.start()
    new = to(recovered)
    wait_for(new, "select not pg_is_in_recovery()")
    send(new, "b")
    tick(new)
    found = drained(new)

    assert [text for batch in found.values() for text in batch] == ["a", "b"]
    assert not found.keys() & (lost | {kept_open})
    assert next_batch(new, consumer="other") == kept_open
    primary.start()
    assert lineage(new) != lineage(to(primary))


def test_a_snapshot_of_the_disk_needs_a_new_lineage_by_hand(servers: Replicas, to: Connect) -> None:
    primary = servers.primary()
    old = to(primary)
    make_queue(old)
    send(old, "a")
    tick(old)
    old.close()
    primary.stop("immediate")
    snapshot = servers.copy(primary)
    primary.start()
    old = to(primary)
    lost = lose_a_tail(old)

    snapshot.start()
    new = to(snapshot)
    assert lineage(new) == lineage(old)
    renewed = value(new, "select pgque.renew_lineage()")
    assert renewed == lineage(new) != lineage(old)
    assert not drained(new).keys() & lost


def test_a_restart_and_a_crash_keep_lineage_and_ids(servers: Replicas, to: Connect) -> None:
    primary = servers.primary()
    db = to(primary)
    make_queue(db)
    known, batch = lineage(db), open_batch(db, "a")
    db.close()
    for mode in ("fast", "immediate"):
        primary.stop(mode)
        primary.start()
        db = to(primary)
        assert (lineage(db), next_batch(db)) == (known, batch)
        finish(db, batch)
        before, batch = batch, open_batch(db, "a")
        assert before < batch < before + 100
        db.close()


def test_a_copy_by_template_has_a_lineage_of_its_own_and_ids_when_asked(
    servers: Replicas, to: Connect
) -> None:
    primary = servers.primary()
    with connect(primary.url()) as original:
        make_queue(original)
        finish(original, open_batch(original, "a"))
    with connect(primary.url("template1")) as db:
        db.execute("create database copy template postgres")
    original, copy = to(primary), to(primary, "copy")

    assert lineage(copy) != (known := lineage(original))
    assert open_batch(copy, "b") == open_batch(original, "b")
    drain(copy)
    value(copy, "select pgque.renew_lineage()")
    assert open_batch(copy, "c") > open_batch(original, "c") + 1_000_000
    assert lineage(original) == known


def test_a_server_that_does_not_tell_its_timeline_goes_on(server: Any) -> None:
    with owned_database(server) as owned, connect(owned.superuser_url) as superuser:
        superuser.execute("revoke execute on function pg_walfile_name(pg_lsn) from public")
        with connect(owned.owner_url) as db:
            db.execute(INSTALL_SQL.read_bytes())
            make_queue(db)
            known = lineage(db)
            batch = open_batch(db, "a")
            assert (payloads(db, batch), lineage(db)) == (["a"], known)
            assert value(db, "select pgque.renew_lineage()") == lineage(db) != known
            finish(db, batch)
            assert open_batch(db, "b") > batch + 1_000_000


def test_only_an_admin_renews_the_lineage(db: Connection) -> None:
    db.execute("set role pgque_reader")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        value(db, "select pgque.renew_lineage()")


def test_batches_of_a_database_that_stays_are_numbered_one_by_one(db: Connection) -> None:
    make_queue(db)
    first = open_batch(db, "a")
    assert events(db, first)
    finish(db, first)
    assert (open_batch(db, "b"), drain(db)) == (first + 1, ["b"])
    assert rows(db, "select 1 from pgque.lineage_lock") == [(1,)]
