"""Nulls, unknown names and negative numbers are refused, in every argument of every function.

The functions and arguments are the catalog's, so a new one is tested as soon as it is there.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest

from tests.security.decisions import TRIGGERS
from tests.support.queues.catalog import (
    CONSUMER_ARGUMENTS,
    GENERATED,
    QUEUE_ARGUMENTS,
    Argument,
    Function,
    populate,
    public_functions,
    sample_values,
)
from tests.support.queues.sql import Connection, connect

# What null means where it is no mistake, by argument; by function too where it is one elsewhere.
NULL_MEANS = {
    "an event, or a dead letter, without it": """
        ev_type type_name i_type i_ev_type ev_data payload i_payload i_ev_data x_ev_type x_ev_data
        ev_extra1 ev_extra2 ev_extra3 ev_extra4 i_ev_extra1 i_ev_extra2 i_ev_extra3 i_ev_extra4
        x_ev_extra1 x_ev_extra2 x_ev_extra3 x_ev_extra4 i_ev_txid i_ev_retry i_partition_key""",
    "a new id, the present time, the first delivery, to all consumers": """
        x_ev_id x_ev_time x_ev_retry ev_id ev_time ev_retry ev_owner""",
    "no reason given": "i_reason",
    "no copy in parts": "set_apart.i_copying",
    "what is not known of an asset": """
        enter_deployment.i_deployment enter_deployment.i_location enter_deployment.i_assets
        move_to_deployment.i_deployment move_to_deployment.i_location move_to_deployment.i_assets
        note_location.i_deployment""",
    "no limit": "i_min_lag i_min_count i_min_interval i_max_count i_limit i_since i_until i_max_id",
    "no condition": "i_extra_where",
    "no": "i_convert_normal x_keep_dead_letters set_relay.i_end",
    "nothing is taken over": "i_dead_interval",
    "the default": "x_param_value",
    "the newest tick": "x_tick_pos",
    "the newest events": "retained_ticks.i_position",
    "the open batch, whichever it is": "claim_batch.i_batch_id claim_coop.i_batch_id",
    "where the consumer stands": "i_from_tick i_to_tick i_after_tick",
    "a new lease": "claim_ticks.i_epoch",
    "a record without fingerprints": "i_from_fingerprint i_to_fingerprint",
    "no tick, which has no fingerprint": "tick_fingerprint.i_tick_id",
    "nothing that is left to do": "abort_staging.i_staging_id maint_addon.i_addon_name",
    "what all consumers get": "tick_range_read_plan.i_consumer",
    "nobody, who holds no slot": "release_slot.i_worker",
    "no message": "i_max_return",
    "no batch": "get_batch_info.x_batch_id",
    "all of them": """
        get_queue_info.i_queue_name get_consumer_info.i_queue_name
        get_consumer_info.i_consumer_name dlq_inspect.i_limit_count
        unticked_events.i_queue_name consumer_waits.i_queue_name replicas.i_queue
        relays.i_queue""",
    "no consumer that replicates it": "replicated_by.i_queue replicated_by.i_table",
    "a batch with events": "note_stored.i_empty_after",
    "nothing was compared, or found": """
        note_verified.i_copy note_verified.i_tick note_verified.i_rows note_verified.i_problem
        note_verified.i_why_not note_verified.i_part set_replicated.i_doubt""",
}
MAY_BE_NULL = {name for names in NULL_MEANS.values() for name in names.split()}
# What null is refused with where that is not, or not only, PQ005.
CODES_OF_NULL = {
    **dict.fromkeys(("i_batch_id", "x_batch_id"), "PQ003"),
    **dict.fromkeys(("i_consumer", "i_slot"), "PQ002 PQ005"),
    **dict.fromkeys(("i_owner", "i_worker", "i_epoch"), "PQ005 PQ012"),
    **dict.fromkeys(("i_msg", "i_msg_ids", "x_event_id"), "PQ009"),
    **dict.fromkeys(("i_tick_id", "i_orig_timestamp", "i_event_seq"), "PQ017"),
    **dict.fromkeys(("i_staging_id", "i_txids"), "PQ022"),
    **dict.fromkeys(("i_filenode", "i_table"), "PQ005 PQ008"),
    "i_dead_letter_id": "PQ010",
    "i_event_ids": "PQ005 PQ009",
    "i_events": "PQ005 PQ022",
    "i_max_count": "PQ023",
    "i_reason": "PQ005 PQ009",
    "i_skip": "PQ016",
    "i_start_at": "PQ005 PQ015",
    "x_force": "PQ007",
}
# They begin what was not there.
NEW_QUEUES = {"create_queue"}
NEW_CONSUMERS = {
    "register_consumer", "register_consumer_at", "register_subconsumer", "subscribe",
    "subscribe_subconsumer", "subscribe_slot", "subscribe_slots", "next_batch", "next_batch_custom",
    "receive_coop", "claim_coop",
}  # fmt: skip
# Called by the procedures that tick and maintain, and by the slices of a read plan. These have
# checked their arguments.
OF_OTHERS = {
    "begin_slot", "maint_pause", "next_beat", "next_run_hint", "run_maintenance", "slot_of_key",
}  # fmt: skip
# Besides ids: what callers pass on as it is, with the sign that it has.
ANY_NUMBER = {"i_filenode", "i_new_value", "i_prev_tick_seq", "i_ev_retry", "ev_retry", "ev_owner"}
NEGATIVE = {
    "pg_catalog.int4": -1,
    "pg_catalog.int8": -1,
    "pg_catalog.interval": "-1 second",
}
# Besides the samples: an array as text, a word of a list.
OTHER_VALUES = {
    **{"payloads": "{1}", "i_on_failure": "skip", "i_max_return": 100},
    "i_part": '{"number": 1, "of": 2}',
}
# As in PgQ: what is not there needs no end and has no information.
LENIENT = {
    "unsubscribe", "unregister_consumer", "unregister_subconsumer", "unsubscribe_subconsumer",
    "unsubscribe_slot", "touch_subconsumer", "get_consumer_info", "get_queue_info",
    "get_batch_info", "dlq_inspect", "dlq_purge", "dlq_replay_all", "in_flight", "maint_idem",
    "maint_rotate_tables_step1", "tune_storage", "replicas", "replicated_by", "relays",
}  # fmt: skip
# Asked about many at once, so one that is not there must not spoil the answer about the others.
SAYS_SO_IN_ITS_ROWS = {"consumer_states"}
# What is not there is as good as cleaned up.
REFUSES_NOTHING = {
    *("abort_staging", "get_batch_info", "get_consumer_info", "get_queue_info", "maint_addon"),
    *("replicas", "replicated_by", "relays"),
}
BATCH_ARGUMENTS = {"i_batch_id", "x_batch_id"}


@dataclass(frozen=True)
class Outcome:
    """What a call with one wrong argument came to."""

    function: Function
    argument: Argument
    sqlstate: str | None
    message: str | None = None
    hint: str | None = None

    def __str__(self) -> str:
        return f"{self.function.signature}, {self.argument.name}: {self.sqlstate} {self.message}"


@pytest.fixture(scope="module")
def db(shared_database_url: str) -> Iterator[Connection]:
    """A database with one of everything, in which calls are rolled back."""
    with connect(shared_database_url) as db:
        populate(db)
        yield db


@pytest.fixture(scope="module")
def called(db: Connection) -> list[Function]:
    """The functions that users call."""
    hidden = {*TRIGGERS.split(), *OF_OTHERS}
    return [
        function
        for function in public_functions(db)
        if function.name not in hidden and not GENERATED.match(function.name)
    ]


@pytest.fixture(scope="module")
def of_null(db: Connection, called: list[Function]) -> list[Outcome]:
    """Of each call with one argument null."""
    return [
        misuse(db, function, argument, None)
        for function in called
        for argument in function.arguments
    ]


@pytest.fixture(scope="module")
def of_unknown(db: Connection, called: list[Function]) -> list[Outcome]:
    """Of each call with a queue, a consumer or a batch that is not there."""
    wrong = [(QUEUE_ARGUMENTS, "nowhere"), (CONSUMER_ARGUMENTS, "nobody")]
    return [
        misuse(db, function, argument, name)
        for function in called
        for argument in function.arguments
        for pattern, name in wrong
        if pattern.fullmatch(argument.name)
    ] + [
        misuse(db, function, argument, 4711)
        for function in called
        for argument in function.arguments
        if argument.name in BATCH_ARGUMENTS
    ]


def misuse(db: Connection, function: Function, argument: Argument, wrong: object) -> Outcome:
    values = {**sample_values(db, function), **OTHER_VALUES}
    given = [
        wrong if each is argument else values.get(each.name, values.get(each.type))
        for each in function.arguments
    ]
    try:
        with db.transaction(force_rollback=True):
            db.execute(function.statement, given)
    except psycopg.Error as error:
        diag = error.diag
        return Outcome(function, argument, error.sqlstate, diag.message_primary, diag.message_hint)
    return Outcome(function, argument, None)


def is_of_ours(outcome: Outcome) -> bool:
    return (outcome.sqlstate or "").startswith("PQ")


def test_null_is_refused_or_means_what_is_listed(of_null: list[Outcome]) -> None:
    wrong = [
        str(outcome)
        for outcome in of_null
        if (
            outcome.sqlstate not in CODES_OF_NULL.get(outcome.argument.name, "PQ005").split()
            if outcome.sqlstate
            else not may_be_null(outcome.function, outcome.argument)
        )
    ]
    assert wrong == []
    accepted = {o.argument.name for o in of_null if o.sqlstate is None}
    accepted |= {f"{o.function.name}.{o.argument.name}" for o in of_null if o.sqlstate is None}
    assert accepted >= MAY_BE_NULL
    assert speechless(of_null) == []


def speechless(outcomes: list[Outcome]) -> list[str]:
    """Errors without a message, or that do not say what to do."""
    return [str(o) for o in outcomes if is_of_ours(o) and not (o.message and o.hint)]


def may_be_null(function: Function, argument: Argument) -> bool:
    return not MAY_BE_NULL.isdisjoint({argument.name, f"{function.name}.{argument.name}"})


def test_an_unknown_queue_consumer_or_batch_is_named(of_unknown: list[Outcome]) -> None:
    wrong = [
        str(outcome)
        for outcome in of_unknown
        if outcome.function.name not in SAYS_SO_IN_ITS_ROWS
        and outcome.sqlstate != code_for(outcome)
    ]
    assert wrong == []
    assert speechless(of_unknown) == []


def code_for(outcome: Outcome) -> str | None:
    """The error that this mistake has."""
    name, argument = outcome.function.name, outcome.argument.name
    if name in LENIENT:
        return None
    if argument in BATCH_ARGUMENTS:
        return "PQ003"
    if QUEUE_ARGUMENTS.fullmatch(argument):
        return None if name in NEW_QUEUES else "PQ001"
    is_member = any(each.name == "i_subconsumer" for each in outcome.function.arguments)
    begins = name in NEW_CONSUMERS and (is_member or not name.startswith("next_batch"))
    return None if begins else "PQ002"


def test_a_negative_count_or_interval_is_refused(db: Connection, called: list[Function]) -> None:
    accepted = [
        str(outcome)
        for function in called
        for argument in function.arguments
        if argument.type in NEGATIVE
        and not argument.name.endswith("_id")
        and argument.name not in ANY_NUMBER
        and not is_of_ours(outcome := misuse(db, function, argument, NEGATIVE[argument.type]))
    ]
    assert accepted == []


def test_every_function_with_arguments_refuses_something(
    called: list[Function], of_null: list[Outcome], of_unknown: list[Outcome]
) -> None:
    refusing = {o.function.signature for o in of_null + of_unknown if is_of_ours(o)}
    trusting = {f.name for f in called if f.arguments and f.signature not in refusing}
    assert trusting == REFUSES_NOTHING
