"""What could fail within a statement that changes a captured table, and what is done about it."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conftest import INSTALL_SQL
from tests.support.queues.races import race
from tests.support.queues.sql import Connection, refused

CAPTURE = "select pgque.capture('t', 'q')"
COUNT = "select count(*) from pgque.event"


@pytest.fixture(autouse=True)
def captured(db: Connection) -> None:
    db.make_queue(consumers=())
    db.execute("create table t (id int primary key, a text); select pgque.capture('t', 'q')")


def insert(db: Connection, number: int = 1) -> None:
    db.execute("insert into t values (%s, 'x')", (number,))


@pytest.mark.parametrize("force", [True, False])
def test_a_queue_is_not_dropped_while_a_table_is_captured_into_it(
    db: Connection, force: bool
) -> None:
    drop = f"select pgque.drop_queue('q', {force})"
    with refused("PQ007", "captured: public.t", "select pgque.uncapture('public.t', 'q');"):
        db.value(drop)
    insert(db)

    db.execute("select pgque.uncapture('public.t', 'q')")

    assert db.value(drop) == 1
    insert(db, 2)


def test_a_drop_waits_for_a_capture_that_runs_and_sees_it(db: Connection) -> None:
    db.execute("select pgque.uncapture('t', 'q')")

    _, drop = race(
        db,
        lambda one: one.value(CAPTURE),
        lambda two: two.value("select pgque.drop_queue('q')"),
    )

    with refused("PQ007", "captured: public.t"):
        drop.result(60)
    insert(db)
    assert db.value(COUNT) == 1


def test_a_capture_that_waits_for_a_drop_finds_no_queue(db: Connection) -> None:
    db.execute("select pgque.uncapture('t', 'q')")

    _, capture = race(
        db,
        lambda one: one.value("select pgque.drop_queue('q')"),
        lambda two: two.value(CAPTURE),
    )

    with refused("PQ001"):
        capture.result(60)
    insert(db)


def test_the_schema_is_not_removed_while_a_table_is_captured(db: Connection) -> None:
    with refused("PQ007", "captured: public.t", "uncapture('public.t', 'q');", "uninstall(true)"):
        db.value("select pgque.uninstall()::text")
    insert(db)

    db.value("select pgque.uninstall(true)::text")

    insert(db, 2)


@pytest.mark.parametrize("removal", ["uninstall(true)", "upgrade"])
def test_writers_go_on_while_the_schema_is_installed_again_or_removed(
    db: Connection, removal: str
) -> None:
    """None of them meets a deadlock or half a schema, but the transaction that was there first."""
    script = INSTALL_SQL.read_bytes() if removal == "upgrade" else None

    def write(session: Connection) -> None:
        for number in range(200):
            session.execute("insert into t values (%s, 'x')", (number,))
            session.execute("update t set a = 'y' where id = %s", (number,))

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write, db.another())
        for _ in range(3):
            db.execute(script or INSTALL_SQL.read_bytes())
        if script is None:
            db.value("select pgque.uninstall(true)::text")
        writing.result(60)

    assert db.value("select count(*) from t") == 200


def test_triggers_of_before_go_on_after_an_upgrade(db: Connection) -> None:
    made = db.rows("select tgname, tgfoid from pg_trigger where not tgisinternal order by 1")
    db.execute("create role t_stranger_writer; grant all on t to t_stranger_writer")
    try:
        db.execute(INSTALL_SQL.read_bytes())
        db.execute("set role t_stranger_writer")
        insert(db)
        db.execute("reset role")
    finally:
        db.execute("reset role; drop owned by t_stranger_writer; drop role t_stranger_writer")

    assert db.value(COUNT) == 1
    query = "select tgname, tgfoid from pg_trigger where not tgisinternal order by 1"
    assert [row for row in db.rows(query) if row in made] == made


def test_a_closed_queue_refuses_and_says_how_it_is_opened(db: Connection) -> None:
    db.value("select pgque.set_queue_config('q', 'disable_insert', 'true')")

    with refused("PQ006", "set_queue_config('q', 'disable_insert', 'false')"):
        insert(db)
