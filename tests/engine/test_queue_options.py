"""Queues made with options, paused and resumed."""

from typing import Any

import pytest

from tests.support.queues import Connection, drain, make_queue, refused, rows, send, tick, value

CREATE = "select pgque.create_queue('q', %s::jsonb)"
EVERY_OPTION = [
    "disable_insert",
    "external_ticker",
    "max_retries",
    "retention",
    "rotation_period",
    "ticker_idle_period",
    "ticker_max_count",
    "ticker_max_lag",
    "ticker_paused",
]


def setting(db: Connection, name: str) -> Any:
    return value(db, f"select queue_{name}::text from pgque.queue where queue_name = 'q'")


class TestOptions:
    def test_a_queue_takes_all_that_it_is_given(self, db: Connection) -> None:
        options = """{"rotation_period": "4 hours", "ticker_max_count": 1000,
            "ticker_max_lag": "5 seconds", "max_retries": 10, "ticker_paused": true}"""
        assert value(db, CREATE, options) == 1
        names = ("rotation_period", "ticker_max_count", "ticker_max_lag", "max_retries")
        assert [setting(db, name) for name in names] == ["04:00:00", "1000", "00:00:05", "10"]
        assert setting(db, "ticker_paused") == "true"

    def test_without_options_it_is_like_any_other(self, db: Connection) -> None:
        value(db, CREATE, "{}")
        value(db, "select pgque.create_queue('plain')")
        without_names = "to_jsonb(queue) - '{queue_id,queue_name,queue_switch_time}'::text[]"
        (first, second) = rows(db, f"select {without_names} from pgque.queue order by queue_id")
        assert {k for k in first[0] if first[0][k] != second[0][k]} <= {
            "queue_data_pfx",
            "queue_event_seq",
            "queue_seq",
            "queue_switch_step1",
            "queue_switch_step2",
        }

    def test_a_queue_that_exists_takes_them_too_and_keeps_the_others(self, db: Connection) -> None:
        value(db, CREATE, '{"max_retries": 3, "ticker_max_count": 7}')
        assert value(db, CREATE, '{"max_retries": 4}') == 0
        assert [setting(db, "max_retries"), setting(db, "ticker_max_count")] == ["4", "7"]

    def test_null_resets_an_option(self, db: Connection) -> None:
        value(db, CREATE, '{"ticker_max_count": 7}')
        value(db, CREATE, '{"ticker_max_count": null}')
        assert setting(db, "ticker_max_count") == "500"

    def test_a_string_is_read_as_set_queue_config_reads_it(self, db: Connection) -> None:
        value(db, CREATE, '{"ticker_max_count": "7", "ticker_paused": "on"}')
        assert [setting(db, "ticker_max_count"), setting(db, "ticker_paused")] == ["7", "true"]

    def test_a_queue_made_closed_takes_no_events(self, db: Connection) -> None:
        value(db, CREATE, '{"disable_insert": true}')
        with refused("PQ006", '"q"'):
            send(db, "x")


class TestBadOptions:
    @pytest.mark.parametrize("name", ["nosuch", "queue_max_retries", "", "queue_id", "Max_Retries"])
    def test_an_unknown_one_is_named_and_the_valid_ones_are_listed(
        self, db: Connection, name: str
    ) -> None:
        with refused("PQ005", f'"{name}"', *EVERY_OPTION):
            value(db, "select pgque.create_queue('q', jsonb_build_object(%s::text, 1))", name)

    @pytest.mark.parametrize(
        ("name", "given"),
        [
            ("ticker_max_count", '"many"'),
            ("ticker_max_count", "-1"),
            ("ticker_max_count", "1.5"),
            ("ticker_max_count", "true"),
            ("ticker_max_count", "99999999999"),
            ("max_retries", "[3]"),
            ("rotation_period", "2"),
            ("rotation_period", '"soon"'),
            ("rotation_period", '"-1 hour"'),
            ("rotation_period", '{"hours": 2}'),
            ("ticker_max_lag", "false"),
            ("ticker_paused", "1"),
            ("ticker_paused", '"maybe"'),
        ],
    )
    def test_a_mistyped_value_is_named_with_its_option_and_the_valid_ones(
        self, db: Connection, name: str, given: str
    ) -> None:
        with refused("PQ005", name, given.strip('"'), *EVERY_OPTION):
            value(
                db,
                "select pgque.create_queue('q', jsonb_build_object(%s::text, %s::jsonb))",
                name,
                given,
            )

    @pytest.mark.parametrize("options", [None, "[]", '"max_retries"', "1", "null"])
    def test_what_is_no_object_is_refused(self, db: Connection, options: str | None) -> None:
        with refused("PQ005", "no JSON object", '"q"', *EVERY_OPTION):
            value(db, CREATE, options)

    def test_nothing_is_half_done(self, db: Connection) -> None:
        value(db, CREATE, '{"max_retries": 3}')
        with refused("PQ005"):
            value(db, CREATE, '{"max_retries": 4, "nosuch": 1}')
        with refused("PQ005"):
            value(db, "select pgque.create_queue('new', '{\"max_retries\": 4, \"z\": 1}')")
        assert rows(db, "select queue_name, queue_max_retries from pgque.queue") == [("q", 3)]

    def test_a_bad_name_is_refused(self, db: Connection) -> None:
        with refused("PQ005", "name"):
            value(db, "select pgque.create_queue('', '{}'::jsonb)")


class TestPause:
    def test_a_paused_queue_takes_events_and_passes_them_on_when_resumed(
        self, db: Connection
    ) -> None:
        make_queue(db)
        value(db, "select pgque.pause_queue('q')::text")
        send(db, "x")
        assert value(db, "select pgque.ticker()") == 0
        value(db, "select pgque.resume_queue('q')::text")
        tick(db)
        assert drain(db) == ["x"]

    @pytest.mark.parametrize("call", ["pause_queue", "resume_queue"])
    def test_an_unknown_queue_is_named(self, db: Connection, call: str) -> None:
        with refused("PQ001", '"nosuch"'):
            rows(db, f"select pgque.{call}('nosuch')")

    @pytest.mark.parametrize("call", ["pause_queue", "resume_queue"])
    def test_doing_it_twice_changes_nothing_more(self, db: Connection, call: str) -> None:
        make_queue(db)
        for _ in range(2):
            rows(db, f"select pgque.{call}('q')")
        assert setting(db, "ticker_paused") == ("true" if call == "pause_queue" else "false")


class TestDifferentOptions:
    DIFFERENT = "select * from pgque.different_options('q', %s::jsonb)"

    def test_what_a_queue_has_under_another_spelling_is_no_difference(self, db: Connection) -> None:
        given = '{"ticker_max_lag": "7 seconds", "max_retries": "09", "event_ttl": "1 day"}'
        value(db, CREATE, given)
        same = '{"ticker_max_lag": "00:00:07", "max_retries": 9, "event_ttl": "24 hours"}'
        assert rows(db, self.DIFFERENT, same) == []

    def test_each_difference_shows_both_values(self, db: Connection) -> None:
        value(db, CREATE, '{"max_retries": 3, "ticker_paused": true}')
        wanted = '{"max_retries": 9, "ticker_paused": false, "ticker_max_count": 500}'
        assert rows(db, self.DIFFERENT, wanted) == [
            ("max_retries", "3", "9"),
            ("ticker_paused", "true", "false"),
        ]

    def test_null_stands_for_the_default(self, db: Connection) -> None:
        value(db, CREATE, '{"max_retries": 3, "event_ttl": "1 day", "ticker_max_count": 7}')
        wanted = (
            '{"max_retries": null, "event_ttl": null, "ticker_max_count": null,'
            ' "rotation_period": null}'
        )
        assert rows(db, self.DIFFERENT, wanted) == [
            ("event_ttl", "1 day", None),
            ("max_retries", "3", None),
            ("ticker_max_count", "7", "500"),
        ]

    def test_a_queue_that_does_not_exist_is_named(self, db: Connection) -> None:
        with refused("PQ001", '"q"'):
            rows(db, self.DIFFERENT, "{}")

    @pytest.mark.parametrize(
        ("options", "named"),
        [
            ('{"nosuch": 1}', '"nosuch"'),
            ("[]", "no JSON object"),
            ('{"rotation_period": 7}', "rotation_period"),
            ('{"max_retries": "many"}', '"many"'),
        ],
    )
    def test_options_that_create_queue_would_refuse_are_refused(
        self, db: Connection, options: str, named: str
    ) -> None:
        value(db, "select pgque.create_queue('q')")
        with refused("PQ005", named, *EVERY_OPTION):
            rows(db, self.DIFFERENT, options)
