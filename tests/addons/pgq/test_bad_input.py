"""Each argument of each function: null, and names and numbers of what is not there."""

from typing import NamedTuple

import psycopg
import pytest

from tests.addons.pgq.test_signatures import FUNCTIONS
from tests.support.queues import Connection, refused

# What null means where it is no mistake.
NULL_MEANS = {
    "an event without it": """
        ev_type ev_data ev_extra1 ev_extra2 ev_extra3 ev_extra4 x_ev_type x_ev_data x_ev_extra1
        x_ev_extra2 x_ev_extra3 x_ev_extra4""",
    "a new id, the present time, the first delivery, to all consumers": """
        ev_id ev_time ev_owner ev_retry x_ev_id x_ev_time x_ev_retry""",
    "no limit": "i_min_lag i_min_count i_min_interval i_dead_interval i_extra_where",
    "no": "x_force",
    "the default": "x_param_value",
    "the newest tick": "x_tick_pos",
    "all of them": """
        get_queue_info.i_queue_name get_consumer_info.i_queue_name
        get_consumer_info.i_consumer_name""",
    "no batch": "get_batch_info.x_batch_id",
    "to forget the tick": "set_last_tick.a_tick_id",
}
MAY_BE_NULL = {name for names in NULL_MEANS.values() for name in names.split()}

# A valid value by the argument's name, as SQL. The batch is that of consumer c.
BATCH = "(select sub_batch from pgque.subscription where sub_role = 'normal' and sub_batch > 0)"
SAMPLES = {
    "'q'": "i_queue_name x_queue_name queue_name x_queue",
    "'c'": "i_consumer_name x_consumer_name x_consumer_id x_consumer a_consumer",
    "'s'": "i_subconsumer_name a_subconsumer",
    BATCH: "i_batch_id x_batch_id a_batch_id",
    "1": """x_event_id ev_id x_ev_id i_tick_id i_event_seq i_retry_seconds x_retry_seconds
        x_tick_pos i_queue_id i_prev_tick_id i_prev_tick_seq i_min_count ev_owner ev_retry
        x_ev_retry a_event_id a_tick_id i_quick_limit i_new_value i_batch_handling""",
    "now()": """x_retry_time x_retry_after ev_time x_ev_time i_orig_timestamp i_prev_tick_time""",
    "interval '0'": "i_min_lag i_min_interval i_dead_interval",
    "'k'": "i_cursor_name",
    "'true'": "i_extra_where",
    "true": "x_force",
    "'ticker_paused'": "x_param_name",
    "'false'": "x_param_value",
    "'public.t'": "i_name",
    "'pgque.event_1_id_seq'": "i_seq_name",
}
SAMPLE = {name: sql for sql, names in SAMPLES.items() for name in names.split()}

QUEUE, CONSUMER, BATCHES = "PQ001", "PQ002", "PQ003"
UNKNOWN = {
    "'nosuch'": ("i_queue_name x_queue_name queue_name x_queue", QUEUE),
    "'nobody'": ("i_consumer_name x_consumer_name x_consumer_id x_consumer", CONSUMER),
    "4711": ("i_batch_id x_batch_id", BATCHES),
}
# These take a name that is new, or say in their result that there is nothing of that name.
TAKES_UNKNOWN = {
    "create_queue",
    "register_consumer",
    "register_consumer_at",
    "unregister_consumer",
    "register_subconsumer",
    "unregister_subconsumer",
    "get_queue_info",
    "get_consumer_info",
    "get_batch_info",
    "tune_storage",
    "maint_rotate_tables_step1",
}


class Call(NamedTuple):
    """A function, its arguments with their types, and the one that is wrong."""

    function: str
    arguments: tuple[tuple[str, str], ...]
    wrong: str

    @property
    def name(self) -> str:
        return self.function.split(".")[1]

    def sql(self, value_of_wrong: str) -> str:
        values = (
            f"{value_of_wrong if name == self.wrong else self._sample(name)}::{kind}"
            for name, kind in self.arguments
        )
        return f"select * from {self.function}({', '.join(values)})"

    def _sample(self, name: str) -> str:
        if self.function.startswith("pgq_coop") and name == "i_consumer_name":
            return "'m'"
        return SAMPLE.get(name, "'x'")


def calls() -> list[Call]:
    found = []
    for signature in FUNCTIONS:
        function, _, rest = signature.partition("(")
        given = [each for each in rest.rpartition(")")[0].split(", ") if each[:4] != "OUT "]
        arguments = tuple((name, kind) for name, _, kind in (each.partition(" ") for each in given))
        found += [Call(function, arguments, name) for name, _ in arguments if name]
    return found


@pytest.fixture
def populated(db: Connection) -> Connection:
    """A queue with an open batch of a consumer and of a subconsumer."""
    db.value("select pgq.create_queue('q')")
    db.value("select pgq.register_consumer('q', 'c')")
    db.value("select pgq_coop.register_subconsumer('q', 'm', 's')")
    db.value("select pgq.insert_event('q', 't', 'a')")
    db.tick()
    db.value("select pgq.next_batch('q', 'c')")
    db.value("select pgq_coop.next_batch('q', 'm', 's')")
    return db


def outcome(db: Connection, sql: str) -> str:
    """The error's code, and that it has a hint; empty without an error. Nothing is kept."""
    try:
        with db.transaction(force_rollback=True):
            db.rows(sql)
    except psycopg.Error as error:
        assert error.diag.message_hint, f"{sql}: {error}"
        return error.sqlstate or ""
    return ""


def test_null_is_refused(populated: Connection) -> None:
    wrong = {}
    for call in calls():
        if {call.wrong, f"{call.name}.{call.wrong}"} & MAY_BE_NULL:
            # The queue has consumers.
            expected: tuple[str, ...] = ("PQ007",) if call.name == "drop_queue" else ("",)
        elif call.name == "ticker" and len(call.arguments) > 1:
            expected = ("PQ005", "PQ017")
        else:
            expected = ("PQ003", "PQ005", "PQ009")
        found = outcome(populated, call.sql("null"))
        if found not in expected:
            wrong[call] = found
    assert wrong == {}


def test_what_is_not_there_is_refused(populated: Connection) -> None:
    wrong = {
        (call, unknown): found
        for unknown, (names, code) in UNKNOWN.items()
        for call in calls()
        if call.wrong in names.split()
        and call.name not in TAKES_UNKNOWN
        and not (call.function.startswith("pgq_coop.next") and code == CONSUMER)
        and (found := outcome(populated, call.sql(unknown))) != code
    }
    assert wrong == {}


def test_what_does_not_fit_is_refused(populated: Connection) -> None:
    for call, code in (
        ("pgq.next_batch('q', 'm')", "PQ015"),
        ("pgq.next_batch('q', 'm.s')", "PQ015"),
        ("pgq.register_consumer_at('q', 'm.s', 1)", "PQ015"),
        ("pgq.unregister_consumer('q', 'm.s')", "PQ016"),
        ("pgq_coop.next_batch('q', 'c', 's')", "PQ016"),
        ("pgq_coop.register_subconsumer('q', 'c', 's')", "PQ016"),
        ("pgq_coop.unregister_subconsumer('q', 'm', 's', 0)", "PQ016"),
        ("pgq_coop.unregister_subconsumer('q', 'm', 's', 7)", "PQ005"),
        ("pgq.drop_queue('q')", "PQ007"),
        ("pgq.set_queue_config('q', 'ticker_max_count', '0')", "PQ005"),
        ("pgq.set_queue_config('q', 'ntables', '5')", "PQ005"),
        ("pgq.create_queue('')", "PQ005"),
        ("pgq.register_consumer('q', '')", "PQ005"),
        ("pgq.register_consumer_at('q', 'new', 4711)", "PQ005"),
        ("pgq.ticker('q', 9, now(), 9)", "PQ017"),
        ("pgq.seq_getval('pg_catalog.pg_class')", "PQ005"),
        ("pgq.seq_setval('pgq.event_1_tick_seq', 5)", "PQ005"),
        ("pgq.get_batch_cursor(1, 'k', -1)", "PQ005"),
    ):
        assert outcome(populated, f"select {call}") == code, call


def test_the_condition_of_a_cursor_stays_in_its_statement(populated: Connection) -> None:
    batch = populated.value(f"select {BATCH}")
    with refused("42P11", "multi-query"):
        populated.rows("select * from pgq.get_batch_cursor(%s, 'k', 1, 'true); select (1')", batch)
