"""The sensor's cursor survives upgrades, and a cursor that it cannot read loses nothing."""

import json

import pytest

from pgque_dagster.sensors.cursor import SensorCursor


def test_a_cursor_is_read_as_it_was_written() -> None:
    cursor = SensorCursor(first='orders/"revenue"')

    assert SensorCursor.read(cursor.write()) == cursor


def test_a_written_cursor_names_its_version() -> None:
    assert json.loads(SensorCursor("orders/revenue").write()) == {
        "version": 1,
        "first": "orders/revenue",
    }


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "1717171717.5",
        "no JSON {",
        "[]",
        '"orders/revenue"',
        '{"first": "orders/revenue"}',
        '{"version": 99, "first": {"queue": "orders"}}',
        '{"version": 1, "first": 7}',
        '{"version": 1}',
    ],
)
def test_what_another_version_left_is_a_cursor_that_knows_nothing(text: str | None) -> None:
    assert SensorCursor.read(text) == SensorCursor()


def test_the_consumer_whose_turn_it_is_comes_first_and_those_before_it_last() -> None:
    assert SensorCursor("c").rotate(["a", "b", "c", "d"]) == ["c", "d", "a", "b"]


@pytest.mark.parametrize("first", [None, "removed"])
def test_without_the_named_consumer_the_order_stays(first: str | None) -> None:
    assert SensorCursor(first).rotate(["a", "b"]) == ["a", "b"]


def test_no_consumers_need_no_turn() -> None:
    assert SensorCursor("a").rotate([]) == []
