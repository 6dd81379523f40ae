"""What publishing does with input that is malformed, empty, null or huge."""

import pytest

from tests.support.queues import (
    Connection,
    events,
    make_queue,
    next_batch,
    payloads,
    refused,
    tick,
    value,
)

MIB = 1024 * 1024


def published(db: Connection) -> list[str]:
    """The payloads of all that was sent."""
    tick(db)
    return payloads(db, next_batch(db))


@pytest.mark.parametrize(
    "call",
    [
        "send('q', %s::jsonb)",
        "send('q', 't', %s::jsonb)",
        "send('q', 't', %s::jsonb, 'key')",
        "send_batch('q', array['1'::jsonb, %s::jsonb])",
        "send_batch('q', 't', array['1'::jsonb, %s::jsonb])",
    ],
)
class TestJsonThatIsNone:
    def test_malformed_is_refused_and_nothing_is_sent(self, db: Connection, call: str) -> None:
        make_queue(db)
        with refused("22P02", "json"):
            value(db, f"select pgque.{call}", '{"a":')
        assert published(db) == []

    def test_a_nul_character_is_refused_and_nothing_is_sent(
        self, db: Connection, call: str
    ) -> None:
        make_queue(db)
        with refused("22P05", "\\u0000"):
            value(db, f"select pgque.{call}", '"\\u0000"')
        assert published(db) == []


def test_as_text_json_with_a_nul_character_goes_through(db: Connection) -> None:
    make_queue(db)
    value(db, "select pgque.send('q', 't', %s)", '"\\u0000"')
    assert published(db) == ['"\\u0000"']


@pytest.mark.parametrize("form", ["send('q', 't', {})", "send_batch('q', 't', array['a', {}])"])
def test_a_nul_byte_is_refused_and_nothing_is_sent(db: Connection, form: str) -> None:
    make_queue(db)
    with refused("22021", "0x00"):
        value(db, f"select pgque.{form}".format(r"E'\000'"))
    assert published(db) == []


@pytest.mark.parametrize("literal", ["{a", "a", "", "{{a},{b,c}}"])
@pytest.mark.parametrize("form", ["send_batch('q', %s)", "send_batch('q', 't', %s)"])
def test_a_malformed_array_literal_is_refused_and_nothing_is_sent(
    db: Connection, form: str, literal: str
) -> None:
    make_queue(db)
    with refused("22P02", "malformed array literal"):
        value(db, f"select pgque.{form}", literal)
    assert published(db) == []


@pytest.mark.parametrize(
    "array", ["null", "null::text", "null::text[]", "null::jsonb[]", "null::varchar[]"]
)
@pytest.mark.parametrize("form", ["send_batch('q', {})", "send_batch('q', 't', {})"])
def test_no_array_at_all_is_refused(db: Connection, form: str, array: str) -> None:
    make_queue(db)
    with refused("PQ005", "null", "empty"):
        value(db, f"select pgque.{form.format(array)}")


@pytest.mark.parametrize("array", ["'{}'", "'{}'::text[]", "'{}'::jsonb[]", "array[]::varchar[]"])
@pytest.mark.parametrize("form", ["send_batch('q', {})", "send_batch('q', 't', {})"])
def test_an_empty_array_sends_nothing(db: Connection, form: str, array: str) -> None:
    make_queue(db)
    assert value(db, f"select pgque.{form.format(array)}") == []
    assert published(db) == []


@pytest.mark.parametrize(
    ("array", "sent"),
    [
        ("array['a', null, 'b', null]", ["a", None, "b", None]),
        ("'{a,NULL,null}'", ["a", None, None]),
        ("'{\"NULL\"}'", ["NULL"]),
        ("array[null::text]", [None]),
        ("array['1'::jsonb, null, 'null'::jsonb]", ["1", None, "null"]),
    ],
)
def test_a_null_element_is_an_event_without_payload_in_its_place(
    db: Connection, array: str, sent: list[str | None]
) -> None:
    make_queue(db)
    ids = value(db, f"select pgque.send_batch('q', 't', {array})")
    tick(db)
    stored = {row[0]: row[5] for row in events(db, next_batch(db))}
    assert [stored[number] for number in ids] == sent


@pytest.mark.parametrize("array", ["array[['a', 'b'], ['c', 'd']]", "'[5:8]={a,b,c,d}'::text[]"])
def test_the_shape_of_an_array_does_not_matter(db: Connection, array: str) -> None:
    make_queue(db)
    ids = value(db, f"select pgque.send_batch('q', 't', {array})")
    assert len(set(ids)) == 4
    assert published(db) == ["a", "b", "c", "d"]


def test_a_million_payloads_are_sent_at_once(db: Connection) -> None:
    make_queue(db)
    sent = value(
        db,
        "select (s.ids[1], s.ids[1000000], cardinality(s.ids))::text from (select pgque.send_batch("
        "'q', 't', array(select nr::text from generate_series(1, 1000000) nr)) as ids) s",
    )
    tick(db)
    found = value(
        db,
        "select (min(e.ev_id), max(e.ev_id), count(*))::text from pgque.get_batch_events(%s) e"
        " where e.ev_data::bigint = e.ev_id",
        next_batch(db),
    )
    assert sent == found == "(1,1000000,1000000)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "sent"),
    [
        ("pgque.send('q', 't', {})", "{}"),
        ("pgque.send('q', 't', to_jsonb({}))", "to_jsonb({})::text"),
        ("pgque.send_batch('q', 't', array[{}])::text", "{}"),
    ],
)
def test_a_payload_of_200_megabytes_is_sent_and_received(
    db: Connection, call: str, sent: str
) -> None:
    make_queue(db)
    content = f"repeat(md5('x'), {200 * MIB // 32})"
    value(db, f"select {call.format(content)}")
    tick(db)
    is_same = f"payload = {sent.format(content)}"
    assert value(db, f"select {is_same} from pgque.receive('q', 'c', 1)") is True


@pytest.mark.slow
def test_jsonb_beyond_its_limit_of_256_megabytes_is_refused(db: Connection) -> None:
    make_queue(db)
    with refused("54000", "268435455"):
        value(db, "select pgque.send('q', 't', to_jsonb(repeat('x', 268435456)))")
    assert published(db) == []
