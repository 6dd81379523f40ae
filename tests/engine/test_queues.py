"""Creating, configuring, pausing and dropping queues."""

from typing import Any

from tests.support.queues.sql import Connection, refused

CREATE = "select pgque.create_queue('q', %s::jsonb)"
CREATE_AGAIN = "select pgque.create_queue('q')"
DROP = "select pgque.drop_queue('q')"
DIFFERENT = "select * from pgque.different_options('q', %s::jsonb)"
EVERY_OPTION = [
    *("disable_insert", "external_ticker", "max_retries", "retention", "rotation_period"),
    *("ticker_idle_period", "ticker_max_count", "ticker_max_lag", "ticker_paused"),
]


def setting(db: Connection, name: str) -> Any:
    return db.value(f"select queue_{name}::text from pgque.queue where queue_name = 'q'")


def test_a_name_has_1_to_57_bytes(db: Connection) -> None:
    """test_injection.py lives with names of all characters."""
    for name in (" ", "x" * 57, "é" * 28):
        db.make_queue(name)
        db.send("hello", queue=name)
        assert (db.received(name), db.rotate(name)) == (["hello"], 1)
        db.value("select pgque.drop_queue(%s, true)", name)
    for wrong in ("", "x" * 58, "é" * 29, None):
        words = "queue name is null" if wrong is None else f'57 bytes, "{wrong}" has'
        for options in ("", ", '{}'::jsonb"):
            with refused("PQ005", words):
                db.value(f"select pgque.create_queue(%s{options})", wrong)
    assert db.rows("select queue_name from pgque.queue") == []


def test_creating_a_queue_again_changes_nothing(q: Connection) -> None:
    q.send("kept")
    assert q.value(CREATE_AGAIN) == 0
    assert q.received() == ["kept"]
    q.value("select pgque.drop_queue('q', true)")
    with q.transaction():
        first_answer = q.value(CREATE_AGAIN)
        answer = q.blocked(Connection.value, CREATE_AGAIN)
    assert (first_answer, answer.result()) == (1, 0)


class TestDropping:
    def test_leaves_none_of_its_objects_and_those_of_others_alone(self, q: Connection) -> None:
        q.make_queue("other")
        q.send("kept", queue="other")
        name = f"^event_{q.queue_id()}"
        batch = q.open_batch("again", "never")
        first, second = q.event_ids(batch)
        q.value("select pgque.nack_batch(%s, %s)", batch, [first])
        q.value("select pgque.dead_letter_batch(%s, %s, 'bad')", batch, [second])
        idem = "select deduped from pgque.send_idem(%s, 't', 'once'::text, 'key')"
        assert [q.value(idem, queue) for queue in ("q", "other")] == [False, False]
        q.value("select pgque.drop_queue('q', true)")
        q.value("select pgque.maint()")
        assert q.rows("select ev_id from pgque.retry_queue") == []
        assert q.rows("select ev_id from pgque.dead_letter") == []
        assert q.rows("select relname from pg_class where relname ~ %s", name) == []
        assert q.rows("select proname from pg_proc where proname ~ %s", name) == []
        assert q.value(idem, "other") and q.value("select count(*) from pgque.idem") == 1
        assert q.received("other") == ["kept", "once"]
        q.make_queue()
        q.send("new")
        assert q.received() == ["new"]

    def test_needs_force_while_there_are_consumers(self, db: Connection) -> None:
        db.make_queue(consumers=("reports",))
        with refused("PQ007", "reports"):
            db.value(DROP)
        db.value("select pgque.unregister_consumer('q', 'reports')")
        assert db.value(DROP) == 1
        with refused("PQ001", '"q"'):
            db.value(DROP)

    def test_tells_the_slower_of_two_so(self, bare: Connection) -> None:
        with bare.transaction():
            bare.value(DROP)
            drop = bare.blocked(Connection.value, DROP)
        with refused("PQ001"):
            drop.result()


class TestParameters:
    def test_is_stored(self, q: Connection) -> None:
        for parameter, given, stored in (
            ("ticker_max_count", "7", "7"),
            ("ticker_max_count", None, "500"),
            ("ticker_max_lag", "2 minutes", "00:02:00"),
            ("ticker_idle_period", "0", "00:00:00"),
            ("rotation_period", "1 day", "1 day"),
            ("retention", "7 days", "7 days"),
            ("max_retries", "0", "0"),
            ("disable_insert", "on", "true"),
            ("external_ticker", "yes", "true"),
            ("ticker_paused", "1", "true"),
        ):
            q.value("select pgque.set_queue_config('q', %s, %s)", parameter, given)
            assert setting(q, parameter) == stored

    def test_what_is_no_parameter_or_value_is_refused_by_name(self, q: Connection) -> None:
        config = "select pgque.set_queue_config('q', %s, %s)"
        for parameter, given in (
            ("ticker_max_count", "many"),
            ("ticker_max_count", "0"),
            ("ticker_max_count", "99999999999"),
            ("ticker_max_lag", "-1 second"),
            ("rotation_period", "0"),
            ("max_retries", "-1"),
            ("disable_insert", "perhaps"),
        ):
            with refused("PQ005", parameter, given):
                q.value(config, parameter, given)
        for parameter in ("nosuch", "name", "id", "cur_table", "", None):
            with refused("PQ005", "Parameters are"):
                q.value(config, parameter, "1")


class TestOptions:
    """JSON that a queue is created with."""

    def test_a_queue_takes_all_that_it_is_given(self, db: Connection) -> None:
        options = """{"rotation_period": "4 hours", "ticker_max_count": 1000,
            "ticker_max_lag": "5 seconds", "max_retries": "10", "disable_insert": "on"}"""
        assert db.value(CREATE, options) == 1
        names = ("rotation_period", "ticker_max_count", "ticker_max_lag", "max_retries")
        assert [setting(db, name) for name in names] == ["04:00:00", "1000", "00:00:05", "10"]
        with refused("PQ006", '"q"'):
            db.send("x")

    def test_without_options_it_is_like_any_other(self, db: Connection) -> None:
        db.value(CREATE, "{}")
        db.value("select pgque.create_queue('plain')")
        without_names = "to_jsonb(queue) - '{queue_id,queue_name,queue_switch_time}'::text[]"
        ((one,), (two,)) = db.rows(f"select {without_names} from pgque.queue order by queue_id")
        names = "data_pfx event_seq seq switch_step1 switch_step2"
        assert {k for k in one if one[k] != two[k]} <= {f"queue_{each}" for each in names.split()}

    def test_a_queue_that_exists_takes_them_too_and_keeps_the_others(self, db: Connection) -> None:
        db.value(CREATE, '{"max_retries": 3, "ticker_max_count": 7}')
        assert db.value(CREATE, '{"max_retries": 4}') == 0
        assert [setting(db, "max_retries"), setting(db, "ticker_max_count")] == ["4", "7"]
        db.value(CREATE, '{"ticker_max_count": null}')  # null resets
        assert setting(db, "ticker_max_count") == "500"

    def test_a_bad_one_is_named_and_nothing_is_half_done(self, q: Connection) -> None:
        unknown = ("nosuch", "queue_max_retries", "", "queue_id", "Max_Retries")
        for name, given in (
            *((name, "1") for name in unknown),
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
        ):
            options = f'{{"disable_insert": true, "{name}": {given}}}'
            words = [f'"{name}"'] if name in unknown else [name, given.strip('"')]
            for sql in (CREATE, CREATE.replace("'q'", "'new'"), DIFFERENT):
                if sql == DIFFERENT and "-1" in given:
                    continue  # it compares, and knows no ranges
                with refused("PQ005", *words, *EVERY_OPTION):
                    q.rows(sql, options)
        for no_object in (None, "[]", '"max_retries"', "1", "null"):
            for sql in (CREATE, DIFFERENT):
                with refused("PQ005", "not a JSON object", '"q"', *EVERY_OPTION):
                    q.rows(sql, no_object)
        found = q.rows("select queue_name, queue_disable_insert from pgque.queue")
        assert found == [("q", False)]

    def test_differences_show_both_values_whatever_their_spelling(self, db: Connection) -> None:
        with refused("PQ001", '"q"'):
            db.rows(DIFFERENT, "{}")
        given = """{"ticker_max_lag": "7 seconds", "max_retries": "09", "retention": "1 day",
            "ticker_paused": true, "ticker_max_count": 7}"""
        db.value(CREATE, given)
        same = '{"ticker_max_lag": "00:00:07", "max_retries": 9, "retention": "24 hours"}'
        assert db.rows(DIFFERENT, same) == []
        wanted = '{"max_retries": 3, "ticker_paused": false, "ticker_max_count": 7}'
        assert db.rows(DIFFERENT, wanted) == [
            ("max_retries", "9", "3"),
            ("ticker_paused", "true", "false"),
        ]
        # Null stands for the default.
        wanted = """{"max_retries": null, "retention": null, "ticker_max_count": null,
            "rotation_period": null}"""
        assert db.rows(DIFFERENT, wanted) == [
            ("max_retries", "9", None),
            ("retention", "1 day", None),
            ("ticker_max_count", "7", "500"),
        ]


def test_a_paused_queue_takes_events_and_passes_them_on_when_resumed(q: Connection) -> None:
    for _ in range(2):
        q.value("select pgque.pause_queue('q')::text")
        assert setting(q, "ticker_paused") == "true"
    q.send("x")
    assert q.value("select pgque.ticker()") == 0
    for _ in range(2):
        q.value("select pgque.resume_queue('q')::text")
        assert setting(q, "ticker_paused") == "false"
    assert q.received() == ["x"]
    for call in ("pause_queue", "resume_queue"):
        with refused("PQ001", '"nosuch"'):
            q.rows(f"select pgque.{call}('nosuch')")


def test_hundreds_of_queues_and_consumers_are_looked_up_by_index(db: Connection) -> None:
    """The planner scans tables of few pages, so every send and poll would read all their rows."""
    db.execute("set session_replication_role = replica")  # rows alone, without what they refer to
    for row in (
        "queue (queue_id, queue_name, queue_data_pfx, queue_event_seq, queue_seq)"
        " select nr, 'q' || nr, 'pgque.event_' || nr, 'pgque.batch_id_seq', 'pgque.batch_id_seq'",
        "consumer (co_id, co_name) select nr, 'c' || nr",
        "subscription_base (sub_queue, sub_consumer) select nr, nr",
    ):
        db.execute(f"insert into pgque.{row} from generate_series(1, 200) nr".encode())
    db.execute("analyze pgque.queue, pgque.consumer, pgque.subscription_base")
    plan = db.rows(
        "explain (costs off) select s.sub_id from pgque.queue q"
        " join pgque.subscription_base s on s.sub_queue = q.queue_id"
        " join pgque.consumer c on c.co_id = s.sub_consumer"
        " where q.queue_name = 'q99' and c.co_name = 'c99'"
    )
    assert [line for (line,) in plan if "Seq Scan" in line] == []
