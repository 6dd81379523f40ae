"""The tables of PgQ: settings by UPDATE, limits, extra maintenance, event tables, triggers."""

import pytest

from tests.support.queues.sql import Connection, refused

SETTINGS = {
    "queue_rotation_period": "03:00:00",
    "queue_external_ticker": "true",
    "queue_disable_insert": "true",
    "queue_ticker_paused": "true",
    "queue_ticker_max_count": "7",
    "queue_ticker_max_lag": "00:00:00.5",
    "queue_ticker_idle_period": "1 mon 00:00:01",
    "queue_per_tx_limit": "3",
}
SENT = {  # by an insert; tests/engine/test_triggers_formats.py has the rest
    "logutriga": ("I:id", "id=1&note=a+b"),
    "sqltriga": ("I", "(id,note) values ('1','a b')"),
    "jsontriga": ('{"op":"INSERT","table":["public","t"],"pkey":["id"]}', '{"id":1,"note":"a b"}'),
}


@pytest.fixture(autouse=True)
def queue(db: Connection) -> None:
    db.value("select pgq.create_queue('q')")
    db.value("select pgq.register_consumer('q', 'c')")


def insert(db: Connection, payload: str = "x") -> int:
    return db.value("select pgq.insert_event('q', 't', %s)", payload)


def delivered(db: Connection, columns: str = "ev_data") -> list[tuple[object, ...]]:
    """Returns the events of the next batch, and finishes it."""
    db.tick()
    batch = db.value("select pgq.next_batch('q', 'c')")
    found = db.rows(f"select {columns} from pgq.get_batch_events(%s)", batch)
    db.value("select pgq.finish_batch(%s)", batch)
    return found


def test_an_update_changes_a_setting_of_its_queue_alone(db: Connection) -> None:
    db.value("select pgq.create_queue('other')")
    setting = "select {}::text from pgq.queue where queue_name = %s"
    for column, wanted in SETTINGS.items():
        before = db.value(setting.format(column), "other")
        db.execute("set intervalstyle = sql_standard")
        db.execute(f"update pgq.queue set {column} = %s where queue_name = 'q'".encode(), [wanted])
        db.execute("reset intervalstyle")
        found = [db.value(setting.format(column), queue) for queue in ("q", "other")]
        assert found == [wanted, before]


def test_columns_that_the_engine_maintains_cannot_be_updated(db: Connection) -> None:
    for column, setting in (
        ("queue_ntables", "5"),
        ("queue_name", "'x'"),
        ("queue_cur_table", "2"),
        ("queue_ticker_paused", "null"),
    ):
        with refused("PQ005", column):
            db.execute(f"update pgq.queue set {column} = {setting}".encode())
    for statement in ("delete from pgq.queue", "insert into pgq.queue (queue_name) values ('x')"):
        with refused("55000"):
            db.execute(statement.encode())


def test_a_transaction_sends_no_more_than_the_limit(db: Connection) -> None:
    db.execute("update pgq.queue set queue_per_tx_limit = 2")
    db.execute("create table t (id int primary key)")
    db.execute(
        "create trigger s after insert on t for each row execute procedure pgq.logutriga('q')"
    )
    ways = [
        "select pgq.insert_event('q', 't', 'x')",
        "insert into t values (3)",
        "select pgq.insert_event_raw('q', null, null, null, null, 't', '', '', '', '', '')",
    ]
    for way in ways:
        with db.transaction(force_rollback=True):
            insert(db)
            with db.transaction(force_rollback=True):
                insert(db)
            insert(db)
            with refused("54000", "allows max 2 events from one TX"), db.transaction():
                db.execute(way.encode())
    for _ in range(3):
        insert(db)
    db.execute("update pgq.queue set queue_per_tx_limit = null")
    with db.transaction():
        for _ in range(5):
            insert(db)
    assert len(delivered(db)) == 8


def test_an_admin_may_delete_and_reschedule_retries(db: Connection) -> None:
    insert(db), insert(db)
    db.tick()
    batch = db.value("select pgq.next_batch('q', 'c')")
    db.value("select pgq.batch_retry(%s, 3600)", batch)
    db.value("select pgq.finish_batch(%s)", batch)
    db.execute("set role pgq_admin")
    db.execute("delete from pgq.retry_queue where ev_id = 1")
    db.execute("update pgq.retry_queue set ev_retry_after = now()")
    assert db.value("select pgq.maint_retry_events()") == 1


@pytest.mark.parametrize("trigger", SENT)
def test_a_trigger_sends_only_changes_of_roles_that_may_write(db: Connection, trigger: str) -> None:
    db.execute("create table t (id int primary key, note text)")
    db.execute(
        "create trigger s after insert or update or delete on t"
        f" for each row execute procedure pgq.{trigger}('q')".encode()
    )
    db.execute("insert into t values (1, 'a b')")
    assert delivered(db, "ev_type, ev_data") == [SENT[trigger]]

    db.execute("grant insert on t to public")
    db.execute("set role pgq_reader")
    with refused("42501", "pgq_writer"):
        db.execute("insert into t values (2)")
    db.execute("set role pgq_writer")
    db.execute("insert into t values (2)")
    db.execute("reset role")
    assert len(delivered(db)) == 1


def test_the_planner_inlines_the_events_of_a_batch(db: Connection) -> None:
    plan = db.rows("explain (verbose) select * from pgq.get_batch_events(1)")
    assert "pgque.get_batch_events" in str(plan)
