"""The record of how replicas stand: what batches stored, and what comparisons found."""

import json

import pytest

from tests.support.queues.metrics import health
from tests.support.queues.sql import Connection, refused

TABLE = "public.t"


@pytest.fixture
def stored(q: Connection) -> Connection:
    """A queue with a consumer that has copied a table of ten rows with the batch of tick 5."""
    batch(q, 5, is_copied=True, row_count=10, is_stored=True)
    return q


def batch(db: Connection, tick: int, table: str = TABLE, **found: object) -> None:
    about = {"table_name": table, "location": "lake/t", "is_stored": False, **found}
    db.value("select pgque.note_replicas('q', 'c', %s, %s)", tick, json.dumps([about]))


def compared(
    db: Connection, tick: int, problem: str | None = None, *, rows: int = 7, why: str | None = None
) -> None:
    note = "select pgque.note_verified('q', 'c', %s, 5, %s, %s, %s, %s)"
    db.value(note, TABLE, tick, rows, problem, why)


def state(db: Connection, columns: str) -> tuple[object, ...]:
    (row,) = db.rows(f"select {columns} from pgque.replicas('q')")
    return row


def test_the_rows_are_those_of_the_copy_and_what_batches_added(stored: Connection) -> None:
    batch(stored, 6, is_stored=True, added=3)
    batch(stored, 7, is_stored=True, added=-1)
    counted = "row_count, counted_tick, stored_tick, copied_tick, batches"
    assert state(stored, counted) == (12, None, 7, 5, 3)

    batch(stored, 8, is_stored=True)  # By nobody knows how many.
    batch(stored, 9, is_stored=True, added=1)
    assert state(stored, counted) == (12, 7, 9, 5, 5)
    compared(stored, 10)
    assert state(stored, counted) == (7, 10, 9, 5, 0)
    batch(stored, 11, is_copied=True, row_count=4, is_stored=True)
    assert state(stored, counted) == (4, None, 11, 11, 1)


def test_a_batch_that_leaves_a_table_as_it_is_writes_nothing(stored: Connection) -> None:
    before = stored.rows("select ctid::text, xmin::text from pgque.replica_status")

    batch(stored, 6)

    assert stored.rows("select ctid::text, xmin::text from pgque.replica_status") == before


def test_a_table_that_is_replicated_no_longer_is_not_listed(stored: Connection) -> None:
    stored.value("select pgque.set_replicated('q', 'c', %s, pg_current_snapshot(), 'x')", TABLE)
    stored.execute("select pgque.set_apart('q', 'c', %s, 5, 'no right')", [TABLE])

    stored.execute("select pgque.name_replicas('q', 'c', '{public.other}')")

    assert state(stored, "table_name, failure") == ("public.other", None)
    assert f"replica:c/{TABLE}" not in health(stored)
    assert stored.rows("select * from pgque.replicated_tables('q', 'c')") == []


def test_a_captured_table_that_is_taken_out_is_listed_until_it_is_uncaptured_or_put_back(
    stored: Connection,
) -> None:
    stored.execute("create table t (id int primary key); select pgque.capture('t', 'q')")
    about = "table_name, left_at is not null, location, stored_tick from pgque.replicas('q')"
    check = f"captured_table:{TABLE}"
    assert check not in health(stored)

    for _ in range(2):
        stored.execute("select pgque.name_replicas('q', 'c', '{public.other}')")
        assert (TABLE, True, None, None) in stored.rows(f"select {about}")
    assert f"replica:c/{TABLE}" not in health(stored)
    status, detail = health(stored)[check]
    assert (status, f"select pgque.uncapture('{TABLE}', 'q')" in detail) == ("warning", True)
    assert stored.value("select pgque.replicated_by('q', %s)", TABLE) is None

    stored.execute("select pgque.name_replicas('q', 'c', '{public.other, public.t}')")
    assert (TABLE, False, None, None) in stored.rows(f"select {about}")
    assert check not in health(stored)
    stored.execute("select pgque.name_replicas('q', 'c', '{public.other}')")
    stored.execute("select pgque.uncapture('t', 'q')")
    stored.execute("select pgque.name_replicas('q', 'c', '{public.other}')")
    assert state(stored, "table_name") == ("public.other",)


def test_a_captured_table_that_no_replica_ever_had_is_critical(stored: Connection) -> None:
    stored.execute("create table mine (id int primary key); select pgque.capture('mine', 'q')")
    status, detail = health(stored)["captured_table:public.mine"]
    assert (status, "none of the queue's replicas has it, and" in detail) == ("critical", True)
    stored.execute("select pgque.unregister_consumer('q', 'c')")
    assert "captured_table:public.mine" not in health(stored), "the queue has no replicas"


def test_a_difference_stays_until_a_later_comparison_is_equal(stored: Connection) -> None:
    compared(stored, 6, "2 of 7 rows differ")
    batch(stored, 7, is_copied=True, row_count=7, is_stored=True)
    compared(stored, 8, why="it took too long")

    found = "verified_tick, verified_problem, unverified, row_count"
    assert state(stored, found) == (6, "2 of 7 rows differ", "it took too long", 7)
    status, detail = health(stored)[f"replica:c/{TABLE}"]
    assert status == "critical"
    assert "2 of 7 rows differ at tick 6" in detail
    assert "compared nothing: it took too long" in detail

    compared(stored, 9)
    assert state(stored, found) == (9, None, None, 7)
    status, detail = health(stored)[f"replica:c/{TABLE}"]
    assert (status, detail.split(",")[0]) == ("ok", "was equal to its table at tick 9")


def test_an_earlier_comparison_that_ends_later_does_not_count(stored: Connection) -> None:
    compared(stored, 9, "it differs")
    compared(stored, 8)
    assert state(stored, "verified_tick, verified_problem") == (9, "it differs")


def test_a_table_is_as_its_oldest_part_or_as_one_that_differs(stored: Connection) -> None:
    def part(number: int, tick: int, problem: str | None = None, copy: int = 5, of: int = 2) -> str:
        note = "select pgque.note_verified('q', 'c', %s, %s, %s, 3, %s, null, %s)"
        about = json.dumps({"number": number, "of": of})
        stored.value(note, TABLE, copy, tick, problem, about)
        columns = "verified_tick, verified_problem, row_count, verified_at < tried_at, unverified"
        (found,) = state(stored, f"concat_ws(' ', {columns})")
        return str(found)

    assert part(1, 6) == "10", "the copy's rows, and nothing is known of the whole"
    assert part(2, 7) == "6 10 t"
    assert part(2, 8, "it differs") == "8 it differs 10 f"
    assert part(1, 9) == "8 it differs 10 t"
    compared(stored, 9, why="it took too long")
    assert part(2, 10) == "9 10 t"
    assert part(1, 11, copy=8) == "9 10 t", "the other part had the rows of another copy"
    assert part(2, 12, copy=8) == "11 10 t"
    assert part(1, 13, copy=8, of=3) == "11 10 t"
    compared(stored, 14)
    assert state(stored, "parts, verified_tick") == (None, 14)


def test_a_replica_may_differ_until_a_comparison_that_began_later_finds_all_rows_equal(
    stored: Connection,
) -> None:
    def mark(why: str | None, copied: str = "5:5:") -> None:
        note = "select pgque.set_replicated('q', 'c', %s, %s, '{}', %s)"
        stored.value(note, TABLE, copied, why)

    def compare(copy: int, problem: str | None = None, part: int | None = None) -> object:
        note = "select pgque.note_verified('q', 'c', %s, %s, 100, 3, %s, null, %s)"
        about = None if part is None else json.dumps({"number": part, "of": 2})
        stored.value(note, TABLE, copy, problem, about)
        (found,) = state(stored, "doubt")
        return found

    def batch_of() -> int:
        stored.value("select pgque.send('q', 'e', '1')")
        stored.value("select pgque.force_next_tick('q')")
        stored.value("select pgque.ticker('q')")
        stored.value("select pgque.next_batch('q', 'c')")
        query = "select sub_next_tick from pgque.subscription"
        return int(stored.value(query))

    mark(None)
    first = batch_of()
    mark("its files")
    assert state(stored, "doubt, doubt_tick") == ("its files", first)
    status, detail = health(stored)[f"replica:c/{TABLE}"]
    assert (status, "may differ from its table" in detail) == ("warning", True)
    assert compare(5) == "its files", "it began before"
    assert compare(first, "it differs") == "its files"
    stored.value("select pgque.finish_batch(sub_batch) from pgque.subscription")
    since, second = state(stored, "doubted_at"), batch_of()
    mark("its labels")
    mark("its files")
    both = "its files; its labels"
    assert state(stored, "doubt, doubt_tick, doubted_at") == (both, second, *since)
    assert compare(first) == both, "it was altered again"
    assert compare(second, part=1) == both
    assert compare(second, part=2) is None
    assert state(stored, "doubt_tick, doubted_at") == (second, None)
    mark("its files")
    mark(None, "9:9:")
    assert state(stored, "doubt") == (None,), "another copy"
    mark("its files", "9:9:")
    stored.value("select pgque.forget_replicated('q', 'c', %s)", TABLE)
    assert state(stored, "doubt") == (None,)


def test_a_replica_that_was_not_compared_is_a_warning(stored: Connection) -> None:
    status, detail = health(stored)[f"replica:c/{TABLE}"]
    assert (status, detail) == ("warning", "was never compared with its table")
    compared(stored, 6)
    compared(stored, 7, why="it took too long")
    assert health(stored)[f"replica:c/{TABLE}"][0] == "warning"


def test_a_table_that_stands_apart_is_critical_since_it_does(stored: Connection) -> None:
    for reason in ("no right", "still none"):
        stored.execute("select pgque.set_apart('q', 'c', %s, 5, %s)", [TABLE, reason])
        since = state(stored, "failed_at")

    assert state(stored, "failed_at, stored_tick") == (*since, 5)
    status, detail = health(stored)[f"replica:c/{TABLE}"]
    assert status == "critical"
    assert detail.startswith("has been set apart since ")
    assert ": still none; was never compared" in detail
    # The comparison says why it is set apart, and so does one that a foreign commit notes.
    for problem in (None, "still none"):
        compared(stored, 6, problem)
        compared(stored, 6, why="still none")
        assert health(stored)[f"replica:c/{TABLE}"][1].count("still none") == 1
    stored.execute("select pgque.set_apart('q', 'c', %s, 5, null)", [TABLE])
    assert state(stored, "failure, failed_at") == (None, None)


def test_the_metrics_say_when_it_was_compared_and_whether_it_is_wrong(stored: Connection) -> None:
    def figures() -> dict[str, float]:
        return {
            name.removeprefix("pgque.replica."): value
            for name, value in stored.rows(
                "select metric_name, value::float8 from pgque.otel_metrics() where labels ="
                """ '{"queue": "q", "consumer": "c", "table": "public.t"}'"""
            )
        }

    assert figures().keys() == {"verified_age_seconds", "problem"}
    assert figures()["problem"] == 0
    compared(stored, 6, "it differs")
    assert figures()["verified_tick"] == 6
    assert figures()["problem"] == 1


def test_a_copy_from_before_there_was_a_record_is_listed(q: Connection) -> None:
    q.value("select pgque.set_replicated('q', 'c', 't', pg_current_snapshot(), 'shape')")

    assert state(q, "table_name, is_copied, location, batches") == ("t", True, None, 0)
    assert q.rows("select * from pgque.replicas('other')") == []


def test_what_is_recorded_is_complete(stored: Connection) -> None:
    with refused("PQ005", "an array of tables"):
        stored.value("select pgque.note_replicas('q', 'c', 6, '{}')")
    with refused("PQ005", "a table and a tick"):
        stored.value("select pgque.note_verified('q', 'c', 't', 5, null, 1, null, null)")
    with refused("PQ005", "a table and a tick"):
        stored.value(
            "select pgque.note_verified('q', 'c', 't', 5, 6, 1, null, null, '{\"of\": 2}')"
        )


def test_the_record_ends_with_the_consumer(stored: Connection) -> None:
    stored.value("select pgque.unregister_consumer('q', 'c')")
    assert stored.rows("select * from pgque.replica_status") == []
