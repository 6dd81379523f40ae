"""Each function that returns or counts events, on each batch of each consumer, beside full queues.

The functions come from the catalog: one that is not in MATRIX fails a test until it is.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.queues.readings import EVENTS, Event, Message, check_received, read_every_way
from tests.support.queues.sql import Connection

PAYLOADS = {
    "no table": [[]],
    "one table": [["a", "b", "c"]],
    "two tables": [["a", "b"], ["c"]],
}
SLOT = "'q', 'parted', 0, 1, 'w'"

# Whoever takes a batch's id, or returns one of these columns, may read or count events.
FOUND = """
select distinct p.proname
from pg_proc p
where p.pronamespace = 'pgque'::regnamespace
  and exists (select from aclexplode(p.proacl) g where g.grantee not in (0, p.proowner))
  and exists (
      select from unnest(p.proargnames) a where a ~ '^[ix]_batch_id$'
      union all
      select from (
          select u.name from unnest(p.proargnames, p.proargmodes) u (name, mode)
          where u.mode in ('o', 't', 'b')
          union all
          select a.attname from pg_type t join pg_attribute a on a.attrelid = t.typrelid
          where t.oid = p.prorettype) result (name)
      where name in ('ev_id', 'msg_id', 'slice_sql', 'slice_from')
         or name ~ '(events|retries|letters)$|^(depth|ev_new|dlq_count)$')
"""


@dataclass(frozen=True)
class Case:
    """An open batch of the queue q; without an id where only receiving opens one."""

    db: Connection
    reader: Connection
    consumer: str
    subscription: str
    payloads: list[str]
    batch: int | None
    holder: tuple[str | None, int | None]

    @property
    def events(self) -> list[Event]:
        assert self.batch is not None
        return self.db.rows(EVENTS, self.batch)

    @property
    def ids(self) -> list[int]:
        return [event[0] for event in self.events]

    def undone(self, sql: str, *params: object) -> list[tuple[Any, ...]]:
        """What a statement returns; what it did is rolled back."""
        with self.db.transaction(force_rollback=True):
            return self.db.rows(sql, *params)


def sees_the_batch(case: Case) -> None:
    if case.batch is not None:
        events = read_every_way(case.db, case.reader, "q", case.subscription, case.batch, 3)
        assert [event[5] for event in events] == case.payloads


def receives(case: Case) -> None:
    if case.consumer == "c":
        messages = check_received(case.db, case.batch or 0, "select * from pgque.receive('q', 'c')")
        assert [message[3] for message in messages] == case.payloads


def receives_shared(case: Case) -> None:
    if case.consumer == "shared":
        call = "select * from pgque.receive_coop('q', 'shared', 'w')"
        messages = check_received(case.db, case.batch or 0, call)
        assert [message[3] for message in messages] == case.payloads


def receives_pages(case: Case) -> None:
    if case.consumer == "parted":
        page: list[Message] = case.undone(f"select * from pgque.receive_partitioned({SLOT})")
        assert [message[3] for message in page] == case.payloads


def settles(call: str) -> Callable[[Case], None]:
    """Settles all events of the batch; the result says how many they were."""

    def check(case: Case) -> None:
        if case.batch is not None:
            found = case.undone(f"select pgque.{call}", case.batch, case.ids, *case.holder)
            assert found == [(len(case.payloads),)]

    return check


def sets_aside(case: Case) -> None:
    if case.batch is not None and case.consumer != "parted":
        found = case.undone("select pgque.set_events_aside(%s, %s, 'bad')", case.batch, case.ids)
        assert found == [(len(case.payloads),)]


def settles_each(call: str) -> Callable[[Case], None]:
    """Settles one event after the other; each time the result says that it was one."""

    def check(case: Case) -> None:
        if case.batch is not None and case.consumer != "parted":
            for event in case.events:
                values = {"batch": case.batch, "id": event[0]}
                with case.db.transaction(force_rollback=True):
                    assert case.db.execute(call.encode(), values).fetchall() == [(1,)]

    return check


def retries_all(case: Case) -> None:
    if case.batch is not None and case.consumer != "parted":
        found = case.undone("select pgque.batch_retry(%s, 0)", case.batch)
        assert found == [(len(case.payloads),)]


def gives_up_all(case: Case) -> None:
    if case.consumer == "c":
        sql = (
            "select pgque.give_up_batch(b.batch_id, 'bad', 'me', b.epoch)"
            " from pgque.claim_batch('q', 'c', 'me') b"
        )
        assert case.undone(sql) == [(len(case.payloads),)]


def seeks(case: Case) -> None:
    if case.consumer == "c" and case.batch is not None:
        with case.db.transaction(force_rollback=True):
            case.db.value("select pgque.finish_batch(%s)", case.batch)
            sql = "select skipped_events, repeated_events from pgque.seek('q', 'c', {})"
            back = case.db.rows(sql.format("'earliest'"))
            forth = case.db.rows(sql.format("'latest', true"))
            assert (back, forth) == ([(0, len(case.payloads))], [(len(case.payloads), 0)])


def shows_dead_letters(sql: str) -> Callable[[Case], None]:
    """Shows the batch's events once they are dead letters, and none of another queue."""

    def check(case: Case) -> None:
        assert case.db.rows(sql) == []
        if case.batch is not None:
            with case.db.transaction(force_rollback=True):
                given = "select pgque.dead_letter_batch(%s, %s, 'bad', %s, %s)"
                case.db.value(given, case.batch, case.ids, *case.holder)
                assert sorted(text for (text,) in case.db.rows(sql)) == case.payloads

    return check


def counts(sql: str) -> Callable[[Case], None]:
    """Counts no more than the ids that the queue itself has given out."""

    def check(case: Case) -> None:
        drawn = case.db.value(f"select last_value from pgque.event_{case.db.queue_id()}_id_seq")
        found = [count for (count,) in case.db.rows(sql)]
        assert all((count or 0) <= drawn for count in found), sql

    return check


NACK = "select pgque.nack(%(batch)s, row(%(id)s, %(batch)s, '', '', 0, now(), '', '', '', '')"
PENDING = "select pending_events from pgque.{} where queue_name = 'q'"

MATRIX: dict[str, Callable[[Case], None]] = {
    "get_batch_events": sees_the_batch,
    "get_batch_cursor": sees_the_batch,
    "batch_event_sql": sees_the_batch,
    "batch_event_tables": sees_the_batch,
    "batch_has_events": sees_the_batch,
    "batch_read_plan": sees_the_batch,
    "tick_range_read_plan": sees_the_batch,
    "receive": receives,
    "receive_coop": receives_shared,
    "receive_partitioned": receives_pages,
    "nack_batch": settles("nack_batch(%s, %s, '0', 'bad'::text, %s, %s)"),
    "dead_letter_batch": settles("dead_letter_batch(%s, %s, 'bad'::text, %s, %s)"),
    "nack": settles_each(f"{NACK}::pgque.message)"),
    "event_retry": settles_each("select pgque.event_retry(%(batch)s, %(id)s, 0)"),
    "batch_retry": retries_all,
    "set_events_aside": sets_aside,
    "give_up_batch": gives_up_all,
    "seek": seeks,
    "dlq_inspect": shows_dead_letters("select ev_data from pgque.dlq_inspect('q')"),
    "dlq_export": shows_dead_letters("select ev_data from pgque.dlq_export('q')"),
    "dlq_summary": counts("select dead_letters from pgque.dlq_summary('q')"),
    "error_rate": counts("select dead_letters from pgque.error_rate('q', '1 hour', '1 hour')"),
    "throughput": counts("select events from pgque.throughput('q', '1 hour', '1 hour')"),
    "in_flight": counts("select estimated_events from pgque.in_flight('q')"),
    "consumer_stats": counts(PENDING.format("consumer_stats()")),
    "get_consumer_info": counts(PENDING.format("get_consumer_info('q')")),
    "queue_stats": counts("select depth from pgque.queue_stats() where queue_name = 'q'"),
    "unticked_events": counts("select events from pgque.unticked_events('q')"),
    "consumer_waits": counts(
        "select events from pgque.consumer_waits('q') where consumer_name = 'c'"
    ),
    "registration_losses": counts("select unread from pgque.registration_losses('q', 'c')"),
    "get_queue_info": counts("select ev_new from pgque.get_queue_info('q')"),
}
# These take a batch's id, and neither read events nor count them.
WITHOUT_EVENTS = {
    *("ack", "ack_batch", "finish_batch", "claim_batch", "claim_coop"),
    *("release_batch", "renew_batch", "hold_batch", "get_batch_info"),
    *("set_aside_epoch", "has_table_due"),
    "finished_before",  # counts event ids
    "event_dead",  # its caller has the event
}


def test_every_function_that_may_return_events_is_in_the_matrix(db: Connection) -> None:
    assert {name for (name,) in db.rows(FOUND)} == MATRIX.keys() | WITHOUT_EVENTS


def fill_another_queue(db: Connection, queue: str) -> None:
    """Events in all of its tables, an open batch, retries and dead letters."""
    db.make_queue(queue, consumers=("c", "behind"))
    batch = db.open_batch("x", "y", queue=queue)
    ids = [row[0] for row in db.rows(EVENTS, batch)]
    db.value("select pgque.nack_batch(%s, %s, '1 hour')", batch, ids[:1])
    db.value("select pgque.dead_letter_batch(%s, %s, 'bad')", batch, ids[1:])
    for text in ("p", "q", "r"):
        db.rotate(queue)
        db.send(text, queue=queue)


def open_for(db: Connection, consumer: str) -> int | None:
    if consumer == "c":
        found: int | None = db.next_batch()
    elif consumer == "shared":
        found = db.value("select pgque.next_batch('q', 'shared', 'w')")
    else:
        page = db.rows(f"select * from pgque.receive_partitioned({SLOT})")
        found = page[0][1] if page else None
    return found


@pytest.fixture
def case(request: pytest.FixtureRequest, db: Connection) -> Iterator[Case]:
    consumer, size, unused_ids = request.param
    db.make_queue(consumers=("c",))
    db.value("select pgque.register_subconsumer('q', 'shared', 'w')")
    db.value("select pgque.subscribe_slot('q', 'parted', 0, 1)")
    epoch = db.value("select pgque.claim_slot('q', 'parted', 0, 'w', '1 hour')")
    if unused_ids:
        with db.transaction(force_rollback=True):
            db.value("select pgque.send_batch('q', 't', %s::text[])", ["x"] * unused_ids)
    fill_another_queue(db, "full")
    for number, texts in enumerate(PAYLOADS[size]):
        if number:
            db.rotate()
        db.send(*texts)
    fill_another_queue(db, "full too")
    db.tick()
    is_slot = consumer == "parted"
    yield Case(
        db,
        db.another(),
        consumer,
        "parted#0/1" if is_slot else consumer,
        [text for texts in PAYLOADS[size] for text in texts],
        open_for(db, consumer),
        ("w", epoch) if is_slot else (None, None),
    )


@pytest.mark.parametrize(
    "case",
    [
        # A batch over many unused ids is read in the long way.
        pytest.param((consumer, size, unused), id=f"{consumer}-{size}-{unused} unused ids")
        for consumer in ("c", "shared", "parted")
        for size in PAYLOADS
        for unused in (0, 1_000)
        if consumer == "c" or unused == (size != "one table") * 1_000
    ],
    indirect=True,
)
def test_each_function_sees_the_events_of_the_batch_and_no_others(case: Case) -> None:
    for check in dict.fromkeys(MATRIX.values()):
        check(case)


@pytest.mark.parametrize(
    "call",
    [
        "select pgque.next_batch('q', 'c')",
        "select batch_id from pgque.next_batch_custom('q', 'c', null, null, null)",
        "select batch_id from pgque.claim_batch('q', 'c', 'w')",
        "select batch_id from pgque.claim_batch('q', 'c', 'w', i_max_count => 10)",
        "select batch_id from pgque.claim_batch('q', 'c', 'w', i_min_count => 1)",
    ],
)
def test_a_batch_ends_at_a_tick_of_its_own_queue(q: Connection, call: str) -> None:
    q.make_queue("busy")
    for text in ("a", "b", "c"):
        q.publish(text, queue="busy")
    assert q.value(call) is None
    q.publish("mine")
    assert q.payloads(q.value(call)) == ["mine"]
