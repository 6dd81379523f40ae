"""Every way in which SQL reads an open batch, compared with one another.

The ways that open or finish a batch themselves are called in a transaction that is rolled back.
"""

from typing import Any

from tests.support.queues.sql import Connection

Event = tuple[Any, ...]  # a row of get_batch_events
Message = tuple[Any, ...]  # a row of receive

COLUMNS = (
    "ev_id, ev_time, ev_txid::text::bigint, ev_retry, ev_type, ev_data,"
    " ev_extra1, ev_extra2, ev_extra3, ev_extra4"
)
SIZES = """
select distinct payload_bytes, batch_bytes, oldest_event, newest_event
from pgque.batch_read_plan(%s, %s)
"""
EVENTS = "select * from pgque.get_batch_events(%s)"
PLAN = "select slice_sql, batch_events, slice_from from pgque.batch_read_plan(%s, %s)"
RANGE = """
select slice_sql
from pgque.get_batch_info(%s) b,
     pgque.tick_range_read_plan(b.queue_name, b.prev_tick_id, b.tick_id, %s, %s)
"""


def read_every_way(
    db: Connection,
    reader: Connection,
    queue: str,
    consumer: str,
    batch: int,
    slices: int,
) -> list[Event]:
    """The events of an open batch of this consumer, after all ways of reading it agreed."""
    events = db.rows(EVENTS, batch)
    assert reader.rows(EVENTS, batch) == events, "another connection reads another batch"
    sql = db.value("select pgque.batch_event_sql(%s)", batch)
    assert reader.rows(sql) == events, "batch_event_sql is another batch"
    assert through_cursors(db, batch) == [events, events], "a cursor is over another batch"

    plan = db.rows(PLAN, batch, slices)
    assert {count for _, count, _ in plan} <= {len(events)}, "the plan counts other events"
    assert db.rows(SIZES, batch, slices) == sizes_of(events), "the plan has other sizes or times"
    sliced = [row for text, _, _ in plan for row in reader.rows(text)]
    assert sorted(sliced) == sorted(events), "the slices are not the batch"
    chosen = [row for *_, text in plan for row in reader.rows(f"select {COLUMNS} from {text}")]
    assert sorted(chosen) == sorted(events), "the slices by columns are not the batch"
    ticks = db.rows(RANGE, batch, slices, consumer)
    between = [row for (text,) in ticks for row in reader.rows(text)]
    assert sorted(between) == sorted(events), "its ticks enclose other events"

    found = db.value("select pgque.batch_has_events(%s)", batch)
    assert found == bool(events), "batch_has_events says something else"
    check_tables(db, queue, batch, events)
    return events


def sizes_of(events: list[Event]) -> list[tuple[Any, ...]]:
    """What a plan of these events says of their sizes and times; nothing without events."""
    if not events:
        return []
    texts = [sum(len(text.encode()) for text in event[4:] if text) for event in events]
    payloads = [len((event[5] or "").encode()) for event in events]
    times = [event[1] for event in events]
    return [(sum(payloads), sum(texts), min(times), max(times))]


def through_cursors(db: Connection, batch: int) -> list[list[Event]]:
    """The events by both forms of get_batch_cursor, the first one at once."""
    found = []
    for call in ("%s, 'in_test', 1", "%s, 'in_test', 1, 'true'"):
        with db.transaction():
            first = db.rows(f"select * from pgque.get_batch_cursor({call})", batch)
            found.append(first + db.rows("fetch all from in_test"))
            db.execute("close in_test")
    return found


def check_tables(db: Connection, queue: str, batch: int, events: list[Event]) -> None:
    """The batch's event tables are the queue's own, and hold all of its events."""
    tables = {name for (name,) in db.rows("select pgque.batch_event_tables(%s)", batch)}
    number = db.queue_id(queue)
    assert tables <= {f"pgque.event_{number}_{nr}" for nr in range(3)}, "tables of another queue"
    stored = {row for table in tables for row in db.rows(f"select {COLUMNS} from {table}")}
    assert stored >= set(events), "batch_event_tables leaves events out"


def check_received(db: Connection, batch: int, call: str, *params: object) -> list[Message]:
    """What receive or receive_coop returns is what the batch holds that it names."""
    with db.transaction(force_rollback=True):
        events = db.rows(EVENTS, batch)
        messages = db.rows(call, *params)
        named = {message[1] for message in messages}
        if events:
            assert named == {batch}, "another batch was received than the open one"
        else:
            assert batch not in named, "events were received in an empty batch"
        held = [as_message(event, number) for number in named for event in db.rows(EVENTS, number)]
    assert messages == held, "other events were received than the batch holds"
    return messages


def as_message(event: Event, batch: int) -> Message:
    """An event as receive returns it."""
    ev_id, ev_time, _, ev_retry, ev_type, ev_data, *extras = event
    return (ev_id, batch, ev_type, ev_data, ev_retry, ev_time, *extras)
