"""Many failed events in one call, each with its reason."""

from collections.abc import Sequence

import pytest

from tests.support.queues import Connection, events, make_queue, open_batch, refused, rows, value

NACK = "select pgque.nack_batch(%s, %s::bigint[], '0', %s::text[])"
GIVE_UP = "select pgque.dead_letter_batch(%s, %s::bigint[], %s::text[])"


def open_events(db: Connection, *payloads: str, **config: str) -> tuple[int, list[int]]:
    """A batch, and the ids of its events."""
    make_queue(db, **config)
    batch = open_batch(db, *payloads)
    return batch, [event[0] for event in events(db, batch)]


def reasons(db: Connection) -> list[tuple[str, str | None]]:
    return rows(db, "select ev_data, dl_reason from pgque.dead_letter order by ev_id")


def waiting(db: Connection) -> list[str]:
    return [text for (text,) in rows(db, "select ev_data from pgque.retry_queue order by ev_id")]


def test_each_event_given_up_keeps_its_reason(db: Connection) -> None:
    batch, ids = open_events(db, "a", "b", "c")
    assert value(db, GIVE_UP, batch, ids[::-1], ["of c", None, "of a"]) == 3
    assert reasons(db) == [("a", "of a"), ("b", None), ("c", "of c")]


def test_a_single_reason_stands_for_all(db: Connection) -> None:
    batch, ids = open_events(db, "a", "b")
    value(db, GIVE_UP, batch, ids, ["bad"])
    assert reasons(db) == [("a", "bad"), ("b", "bad")]


def test_retries_used_up_keep_each_its_reason(db: Connection) -> None:
    batch, ids = open_events(db, "a", "b", max_retries="0")
    value(db, NACK, batch, ids, ["of a", None])
    assert reasons(db) == [("a", "of a"), ("b", "max retries exceeded")]


def test_an_id_given_twice_counts_once(db: Connection) -> None:
    batch, ids = open_events(db, "a", "b")
    assert value(db, NACK, batch, [*ids, *ids], ["x"]) == 2


def test_no_event_is_no_error(db: Connection) -> None:
    batch, _ = open_events(db, "a")
    assert (value(db, NACK, batch, [], []), value(db, GIVE_UP, batch, [], ["x"])) == (0, 0)


@pytest.mark.parametrize("call", [NACK, GIVE_UP])
@pytest.mark.parametrize("given", [["x", "y", "z"], [], None])
def test_neither_one_reason_nor_one_for_each_is_refused(
    db: Connection, call: str, given: Sequence[str] | None
) -> None:
    batch, ids = open_events(db, "a", "b")
    with refused("PQ005", "reasons for 2 events"):
        value(db, call, batch, ids, given)
    assert (reasons(db), waiting(db)) == ([], [])


@pytest.mark.parametrize("call", [NACK, GIVE_UP])
def test_a_null_among_ids_is_refused(db: Connection, call: str) -> None:
    batch, ids = open_events(db, "a")
    with refused("PQ009", "null"):
        value(db, call, batch, [*ids, None], ["x"])
    assert (reasons(db), waiting(db)) == ([], [])


def test_an_event_given_up_before_is_not_delivered_again(db: Connection) -> None:
    batch, ids = open_events(db, "a", "b")
    value(db, GIVE_UP, batch, ids[:1], ["hopeless"])
    assert value(db, NACK, batch, ids, ["try again"]) == 2
    assert (reasons(db), waiting(db)) == ([("a", "hopeless")], ["b"])


def test_a_reason_without_a_type_is_a_text(db: Connection) -> None:
    batch, ids = open_events(db, "a", "b")
    value(db, "select pgque.nack_batch(%s, %s::bigint[], '0', null)", batch, ids[:1])
    value(db, "select pgque.dead_letter_batch(%s, %s::bigint[], 'bad')", batch, ids[1:])
    assert (reasons(db), waiting(db)) == ([("b", "bad")], ["a"])
