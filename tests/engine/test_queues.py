"""Creating, configuring and dropping queues."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.queues import (
    Connection,
    drain,
    make_queue,
    open_batch,
    queue_id,
    refused,
    rotate,
    rows,
    send,
    tick,
    value,
    wait_until_blocked,
)

STRANGE_NAMES = [
    "événements ☃ 列",
    "it's",
    'say "hi"',
    "a;drop schema pgque",
    "dotted.name.here",
    "%s %I %L",
    "$1 $fn$ $body$",
    "back\\slash",
    " ",
    "UPPER lower",
    "x" * 57,
    "é" * 28,
]


@pytest.mark.parametrize("name", STRANGE_NAMES)
def test_a_queue_of_any_name_carries_events(db: Connection, name: str) -> None:
    make_queue(db, name)
    send(db, "hello", queue=name)
    tick(db, name)
    assert drain(db, name) == ["hello"]


@pytest.mark.parametrize("name", STRANGE_NAMES)
def test_a_queue_of_any_name_rotates_and_is_dropped(db: Connection, name: str) -> None:
    make_queue(db, name)
    send(db, "a", queue=name)
    rotated = rotate(db, name)
    value(db, "select pgque.drop_queue(%s, true)", name)
    assert (rotated, rows(db, "select queue_name from pgque.queue")) == (1, [])


@pytest.mark.parametrize("name", ["", "x" * 58, "é" * 29, None])
def test_a_name_without_or_with_too_many_bytes_is_refused(db: Connection, name: str | None) -> None:
    with refused("PQ005", "queue name"):
        value(db, "select pgque.create_queue(%s)", name)


def test_creating_a_queue_again_changes_nothing(db: Connection) -> None:
    make_queue(db)
    send(db, "kept")
    assert value(db, "select pgque.create_queue('q')") == 0
    tick(db)
    assert drain(db) == ["kept"]


def test_creating_a_queue_at_once_makes_one(
    db: Connection, another: Callable[[], Connection], background: ThreadPoolExecutor
) -> None:
    second = another()
    with db.transaction():
        first_answer = value(db, "select pgque.create_queue('q')")
        answer = background.submit(value, second, "select pgque.create_queue('q')")
        wait_until_blocked(another(), second)
    assert (first_answer, answer.result()) == (1, 0)


def test_dropping_a_queue_leaves_none_of_its_objects(db: Connection) -> None:
    make_queue(db)
    number = queue_id(db)
    value(db, "select pgque.drop_queue('q', true)")
    value(db, "select pgque.maint()")
    assert rows(db, "select relname from pg_class where relname ~ %s", f"^event_{number}") == []
    assert rows(db, "select proname from pg_proc where proname ~ %s", f"^event_{number}") == []


def test_dropping_a_queue_takes_its_retries_and_dead_letters(db: Connection) -> None:
    make_queue(db)
    first, second = send(db, "again", "never")
    tick(db)
    batch = value(db, "select pgque.next_batch('q', 'c')")
    value(db, "select pgque.nack_batch(%s, %s)", batch, [first])
    value(db, "select pgque.dead_letter_batch(%s, %s, 'bad')", batch, [second])
    value(db, "select pgque.drop_queue('q', true)")
    left = rows(db, "select ev_id from pgque.retry_queue union select ev_id from pgque.dead_letter")
    assert left == []


def test_a_queue_with_consumers_is_dropped_only_by_force(db: Connection) -> None:
    make_queue(db, consumers=("reports",))
    with refused("PQ007", "reports"):
        value(db, "select pgque.drop_queue('q')")


def test_a_queue_without_consumers_is_dropped(db: Connection) -> None:
    make_queue(db, consumers=())
    assert value(db, "select pgque.drop_queue('q')") == 1


def test_dropping_an_unknown_queue_names_it(db: Connection) -> None:
    with refused("PQ001", '"nosuch"'):
        value(db, "select pgque.drop_queue('nosuch')")


def test_the_slower_of_two_drops_is_told_that_the_queue_is_gone(
    db: Connection, another: Callable[[], Connection], background: ThreadPoolExecutor
) -> None:
    make_queue(db, consumers=())
    second = another()
    with db.transaction():
        value(db, "select pgque.drop_queue('q')")
        drop = background.submit(value, second, "select pgque.drop_queue('q')")
        wait_until_blocked(another(), second)
    with refused("PQ001"):
        drop.result()


def test_a_new_queue_of_a_dropped_name_starts_empty(db: Connection) -> None:
    make_queue(db)
    open_batch(db, "old")
    value(db, "select pgque.drop_queue('q', true)")
    make_queue(db)
    send(db, "new")
    tick(db)
    assert drain(db) == ["new"]


def test_dropping_a_queue_leaves_the_others_alone(db: Connection) -> None:
    make_queue(db, "doomed")
    make_queue(db, "other")
    send(db, "kept", queue="other")
    value(db, "select pgque.drop_queue('doomed', true)")
    tick(db, "other")
    assert drain(db, "other") == ["kept"]


@pytest.mark.parametrize(
    ("parameter", "setting", "stored"),
    [
        ("ticker_max_count", "7", "7"),
        ("ticker_max_lag", "2 minutes", "00:02:00"),
        ("ticker_idle_period", "0", "00:00:00"),
        ("rotation_period", "1 day", "1 day"),
        ("retention", "7 days", "7 days"),
        ("max_retries", "0", "0"),
        ("disable_insert", "on", "true"),
        ("external_ticker", "yes", "true"),
        ("ticker_paused", "1", "true"),
    ],
)
def test_a_parameter_is_stored(db: Connection, parameter: str, setting: str, stored: str) -> None:
    make_queue(db, **{parameter: setting})
    assert value(db, f"select queue_{parameter}::text from pgque.queue") == stored


def test_null_resets_a_parameter_to_its_default(db: Connection) -> None:
    make_queue(db, ticker_max_count="7")
    value(db, "select pgque.set_queue_config('q', 'ticker_max_count', null)")
    assert value(db, "select queue_ticker_max_count from pgque.queue") == 500


@pytest.mark.parametrize(
    ("parameter", "setting"),
    [
        ("ticker_max_count", "many"),
        ("ticker_max_count", "0"),
        ("ticker_max_count", "99999999999"),
        ("ticker_max_lag", "-1 second"),
        ("rotation_period", "0"),
        ("max_retries", "-1"),
        ("disable_insert", "perhaps"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(
    db: Connection, parameter: str, setting: str
) -> None:
    make_queue(db)
    with refused("PQ005", parameter, setting):
        value(db, "select pgque.set_queue_config('q', %s, %s)", parameter, setting)


@pytest.mark.parametrize("parameter", ["nosuch", "name", "id", "cur_table", "", None])
def test_what_is_no_parameter_cannot_be_set(db: Connection, parameter: str | None) -> None:
    make_queue(db)
    with refused("PQ005", "Parameters are"):
        value(db, "select pgque.set_queue_config('q', %s, '1')", parameter)


def test_hundreds_of_queues_and_consumers_are_looked_up_by_index(db: Connection) -> None:
    """The planner scans tables of few pages, so every send and poll would read all their rows."""
    db.execute("set session_replication_role = replica")  # rows alone, without what they refer to
    db.execute(
        "insert into pgque.queue (queue_id, queue_name, queue_data_pfx, queue_event_seq, queue_seq)"
        " select nr, 'q' || nr, 'pgque.event_' || nr, 'pgque.batch_id_seq', 'pgque.batch_id_seq'"
        " from generate_series(1, 200) nr"
    )
    db.execute(
        "insert into pgque.consumer (co_id, co_name)"
        " select nr, 'c' || nr from generate_series(1, 200) nr"
    )
    db.execute(
        "insert into pgque.subscription_base (sub_queue, sub_consumer)"
        " select nr, nr from generate_series(1, 200) nr"
    )
    db.execute("analyze pgque.queue, pgque.consumer, pgque.subscription_base")
    plan = rows(
        db,
        "explain (costs off) select s.sub_id from pgque.queue q"
        " join pgque.subscription_base s on s.sub_queue = q.queue_id"
        " join pgque.consumer c on c.co_id = s.sub_consumer"
        " where q.queue_name = 'q99' and c.co_name = 'c99'",
    )
    assert [line for (line,) in plan if "Seq Scan" in line] == []
