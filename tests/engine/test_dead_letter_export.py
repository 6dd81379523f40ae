"""`dlq_export`: all dead letters of a queue, page by page, with who gave them up."""

import pytest

from tests.support.dead_letters import give_up
from tests.support.queues import Connection, make_queue, next_batch, refused, rows, tick, value


def test_an_export_has_all_of_a_dead_letter_and_its_consumers_name(db: Connection) -> None:
    make_queue(db)
    extras = ("one", "two", "three", "four")
    value(db, "select pgque.insert_event('q', 't', 'data', %s, %s, %s, %s)", *extras)
    tick(db)
    batch = next_batch(db)
    ((ev_id, ev_time),) = rows(db, "select ev_id, ev_time from pgque.get_batch_events(%s)", batch)
    value(db, "select pgque.dead_letter_batch(%s, %s, 'bad')", batch, [ev_id])
    ((dl_id, dl_time),) = rows(db, "select dl_id, dl_time from pgque.dlq_inspect('q')")

    assert rows(db, "select * from pgque.dlq_export('q')") == [
        (dl_id, "c", dl_time, "bad", ev_id, ev_time, None, "t", "data", *extras)
    ]


def test_pages_follow_one_another_the_oldest_first(db: Connection) -> None:
    make_queue(db)
    give_up(db, *"abcde")
    pages, after = [], 0
    while page := rows(db, "select dl_id, ev_data from pgque.dlq_export('q', %s, 2)", after):
        pages.append([text for _, text in page])
        after = page[-1][0]
    assert pages == [["a", "b"], ["c", "d"], ["e"]]


def test_dead_letters_of_other_queues_are_not_exported(db: Connection) -> None:
    make_queue(db)
    make_queue(db, "other")
    give_up(db, "a", queue="other")
    assert rows(db, "select * from pgque.dlq_export('q')") == []


@pytest.mark.parametrize("page", ["0, 0", "0, -1", "0, null", "null, 1"])
def test_a_page_that_makes_no_sense_is_refused(db: Connection, page: str) -> None:
    make_queue(db)
    with refused("PQ005", "no page of"):
        db.execute(f"select pgque.dlq_export('q', {page})".encode())


def test_an_export_of_an_unknown_queue_names_it(db: Connection) -> None:
    with refused("PQ001", '"nosuch"'):
        value(db, "select pgque.dlq_export('nosuch')")
