"""Tables that are set apart from the batches of their consumer: what is kept for them."""

import pytest

from tests.support.queues.sql import Connection

MINUTES = "round(extract(epoch from retry_at - clock_timestamp()) / 60)"


@pytest.fixture
def copied(q: Connection) -> Connection:
    """A queue whose consumer has copied two tables, and stands at its third tick."""
    for table in ("a", "b"):
        q.execute(
            "select pgque.set_replicated('q', 'c', %s, pg_current_snapshot(), 'shape')", (table,)
        )
    for _ in range(2):
        event(q)
    return q


def event(q: Connection) -> int:
    """Sends an event, and finishes the batch with it. Returns its last tick."""
    q.execute("select pgque.send('q', 'e', '1')")
    q.execute("select pgque.force_next_tick('q')")
    tick = int(q.value("select pgque.ticker('q')"))
    q.execute("select pgque.finish_batch(pgque.next_batch('q', 'c'))")
    return tick


def part(q: Connection, tick: int, table: str = "a", why: str | None = "why") -> None:
    q.execute("select pgque.set_apart('q', 'c', %s, %s, %s)", (table, tick, why))


def passed(q: Connection) -> int:
    return int(q.value("select pgque.find_passed_tick(queue_id) from pgque.queue"))


def rotate(q: Connection) -> None:
    q.execute("select pgque.set_queue_config('q', 'rotation_period', '1 microsecond')")
    for _ in range(4):
        q.execute("select pgque.maint_rotate_tables_step1('q')")
        q.execute("select pgque.maint_rotate_tables_step2()")


def test_events_are_kept_for_the_table_that_stands_apart_longest(copied: Connection) -> None:
    first = event(copied)
    part(copied, first)
    second = event(copied)
    part(copied, second, "b")
    last = event(copied)
    assert passed(copied) == first
    rotate(copied)
    events = "select count(*) from pgque.event where ev_type = 'e'"
    kept = copied.value(events)
    assert kept >= 2
    plan = "select max(batch_events) from pgque.tick_range_read_plan('q', %s, %s, 1)"
    assert copied.value(plan, first, last) == 2
    assert copied.rows("select first_tick from pgque.needed_tick") == [(first,)]
    part(copied, first, why=None)
    assert passed(copied) == second
    part(copied, second, "b", why=None)
    assert passed(copied) == last
    rotate(copied)
    assert copied.value(events) < kept


def test_pauses_grow_up_to_ten_minutes(copied: Connection) -> None:
    tick, pauses = event(copied), []
    for _ in range(6):
        part(copied, tick)
        pauses.append(int(copied.value(f"select {MINUTES} from pgque.replica_apart")))
    assert pauses == [1, 2, 4, 8, 10, 10]
    found = "select tick_id, is_kept, is_due, reason from pgque.tables_apart('q', 'c')"
    assert copied.rows(found) == [(tick, True, False, "why")]


def test_a_table_that_is_to_be_copied_keeps_nothing_and_is_due_at_once(copied: Connection) -> None:
    tick = event(copied)
    part(copied, tick)
    last = event(copied)
    copied.execute("select pgque.forget_replicated('q', 'c', 'a')")
    assert passed(copied) == last
    assert copied.rows("select is_due from pgque.tables_apart('q', 'c')") == [(True,)]
    part(copied, tick, "never copied")
    assert passed(copied) == last


def test_events_are_kept_for_a_copy_in_parts_which_is_due_at_once(copied: Connection) -> None:
    tick = event(copied)
    copied.execute("select pgque.forget_replicated('q', 'c', 'a')")
    found = "select tick_id, is_due, reason, copying from pgque.tables_apart('q', 'c')"
    for done in ("1 of 3 parts", "2 of 3 parts"):
        copied.execute("select pgque.set_apart('q', 'c', 'a', %s, null, %s)", (tick, done))
        last = event(copied)
        assert copied.rows(found) == [(tick, True, "", done)]
        assert passed(copied) == tick
    state = "select failure, copying from pgque.replicas('q') where table_name = 'a'"
    assert copied.rows(state) == [(None, "2 of 3 parts")]
    copied.execute("select pgque.set_apart('q', 'c', 'a', %s, 'no right', %s)", (tick, done))
    assert copied.rows(found) == [(tick, False, "no right", done)]
    assert passed(copied) == tick
    # A request for another copy needs none of the events.
    copied.execute("select pgque.forget_replicated('q', 'c', 'a')")
    assert passed(copied) == last
    part(copied, tick, why=None)
    assert copied.rows(found) == []


def test_a_batch_without_events_needs_a_run_while_a_table_is_due(copied: Connection) -> None:
    part(copied, event(copied))
    copied.execute("select pgque.force_next_tick('q'); select pgque.ticker('q')")
    batch = copied.value("select pgque.next_batch('q', 'c')")
    due = "select pgque.has_table_due(%s)"
    assert not copied.value(due, batch)
    copied.execute("update pgque.replica_apart set retry_at = clock_timestamp()")
    assert copied.value(due, batch)


def test_held_up_rotation_names_the_table_and_the_way_out(copied: Connection) -> None:
    part(copied, event(copied))
    event(copied)
    copied.execute("update pgque.queue set queue_switch_time = now() - interval '1 day'")
    found = "select detail from pgque.queue_health() where check_name = 'rotation_health'"
    detail = str(copied.value(found))
    assert "the changes of table a are kept, which is set apart: see replica:c/a" in detail
    assert detail.endswith("select pgque.forget_replicated('q', 'c', 'a');")
    copied.execute(detail[detail.index("select pgque.") :].encode())
    assert "is set apart" not in str(copied.value(found))


def test_what_is_noted_ends_with_the_consumer(copied: Connection) -> None:
    part(copied, event(copied))
    copied.execute("select pgque.unregister_consumer('q', 'c')")
    assert copied.rows("select from pgque.replica_apart") == []


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("public.t", "public.t"),
        ('Public."T"', 'public."T"'),
        ('"a.b"."c""d"', '"a.b"."c""d"'),
        ("pg_class", "pg_catalog.pg_class"),
        ("missing", None),
    ],
)
def test_a_table_that_is_gone_has_the_name_that_its_events_have(
    q: Connection, written: str, name: str | None
) -> None:
    q.execute("set quote_all_identifiers = on")
    assert q.value("select pgque.captured_name(%s)", written) == name
