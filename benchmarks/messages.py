"""Measures postgremq against PGMQ and a plain table with SKIP LOCKED.

PGMQ's functions are written here from its documentation: one table per queue, whose name is put
into the statement at each call. Each rival sends, takes and deletes the same messages, in the same
number of calls, over one connection with prepared statements and synchronous_commit off. Ours also
notifies listeners of each message, gives each claim a token, and keeps finished messages.
"""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.measure import Contender, Result, medians, timed
from benchmarks.servers import Connection, connect
from pgque_dagster import installer

_MESSAGES = 2000
_BATCH = 100

_RIVALS = """
create schema rival;
create table rival.q (
    msg_id bigint generated always as identity primary key,
    read_ct integer not null default 0,
    enqueued_at timestamptz not null default now(),
    vt timestamptz not null,
    message jsonb,
    headers jsonb);
create index on rival.q (vt);
create function rival.send(queue text, body jsonb) returns setof bigint language plpgsql as $$
begin
    return query execute format(
        'insert into rival.%I (vt, message) values (clock_timestamp(), $1) returning msg_id', queue)
    using body;
end $$;
create function rival.read(queue text, vt integer, qty integer) returns setof rival.q
language plpgsql as $$
begin
    return query execute format(
        'with due as (select msg_id from rival.%1$I where vt <= clock_timestamp() order by msg_id '
        'limit $1 for update skip locked) update rival.%1$I q set read_ct = read_ct + 1, '
        'vt = clock_timestamp() + make_interval(secs => $2) from due '
        'where q.msg_id = due.msg_id returning q.*', queue)
    using qty, vt;
end $$;
create function rival.drop_messages(queue text, ids bigint[]) returns setof bigint
language plpgsql as $$
begin
    return query execute format(
        'delete from rival.%I where msg_id = any ($1) returning msg_id', queue)
    using ids;
end $$;
create table rival.plain (
    id bigint generated always as identity primary key, vt timestamptz not null default now(),
    attempts integer not null default 0, body jsonb);
"""


@dataclass(frozen=True)
class Rival:
    """How a contender sends one message, sends many, and takes and finishes up to a number."""

    name: str
    send: str
    send_many: str
    cycle: Callable[[Connection, int], int]


def prepare(url: str) -> None:
    """Creates a queue for each rival."""
    installer.install(url, ["postgremq"])
    with connect(url) as connection:
        connection.execute(_RIVALS.encode())
        connection.execute("select postgremq.create_topic('t')")
        connection.execute("select postgremq.create_queue('q', 't')")


def measure(url: str, *, rounds: int) -> list[Result]:
    """Returns the results of single calls."""
    prepare(url)
    with connect(url) as connection:
        # All contenders prepare their statements at the first call.
        connection.prepare_threshold = 0
        return [
            *_compare(
                connection,
                "publish messages, 1 a call",
                rounds,
                (1.0, None),
                lambda rival: (
                    lambda: timed(lambda: connection.execute(rival.send.encode()), _MESSAGES)
                ),
            ),
            *_cycles(connection, 1, rounds, 1.0),
            *_cycles(connection, _BATCH, rounds, 1.5),
        ]


def _cycles(connection: Connection, size: int, rounds: int, target: float) -> list[Result]:
    def cost(rival: Rival) -> Callable[[], float]:
        def run() -> float:
            connection.execute(rival.send_many.encode(), [_MESSAGES])
            return timed(lambda: rival.cycle(connection, size), _MESSAGES // size)

        return run

    what = f"take and ack messages, {size} a call"
    return _compare(connection, what, rounds, (target, None), cost)


def _compare(
    connection: Connection,
    what: str,
    rounds: int,
    targets: tuple[float | None, ...],
    cost: Callable[[Rival], Callable[[], float]],
) -> list[Result]:
    for rival in RIVALS:  # what an earlier part has left
        while rival.cycle(connection, _MESSAGES):
            pass
    costs = medians([Contender(rival.name, cost(rival)) for rival in RIVALS], rounds)
    ours = costs[RIVALS[0].name]
    return [
        Result(
            what,
            rival.name,
            costs[rival.name] / ours,
            ">=",
            target,
            f"{1 / ours:,.0f}/{1 / costs[rival.name]:,.0f} per s",
        )
        for rival, target in zip(RIVALS[1:], targets, strict=True)
    ]


def _ours(connection: Connection, size: int) -> int:
    claims = connection.execute(
        "select message_id, consumer_token, payload from postgremq.consume_message('q', 30, %s)",
        [size],
    ).fetchall()
    if size == 1 and claims:
        connection.execute("select postgremq.ack_message('q', %s, %s)", claims[0][:2])
    elif claims:
        connection.execute(
            "select postgremq.ack_message_batch('q', %s::int[], %s::varchar[])",
            [[claim[0] for claim in claims], [claim[1] for claim in claims]],
        )
    return len(claims)


def _pgmq(connection: Connection, size: int) -> int:
    taken = connection.execute("select * from rival.read('q', 30, %s)", [size]).fetchall()
    if taken:
        connection.execute(
            "select rival.drop_messages('q', %s::bigint[])", [[row[0] for row in taken]]
        )
    return len(taken)


def _plain(connection: Connection, size: int) -> int:
    taken = connection.execute(
        "update rival.plain set vt = now() + interval '30 s', attempts = attempts + 1"
        " where id in (select id from rival.plain where vt <= now() order by id"
        " limit %s for update skip locked) returning id, body",
        [size],
    ).fetchall()
    if taken:
        connection.execute("delete from rival.plain where id = any (%s)", [[r[0] for r in taken]])
    return len(taken)


RIVALS = (
    Rival(
        "postgremq",
        "select postgremq.publish_message('t', '{\"id\": 1}')",
        "insert into postgremq.messages (topic_name, payload)"
        " select 't', '{\"id\": 1}' from generate_series(1, %s)",
        _ours,
    ),
    Rival(
        "PGMQ",
        "select rival.send('q', '{\"id\": 1}')",
        "insert into rival.q (vt, message) select now(), '{\"id\": 1}' from generate_series(1, %s)",
        _pgmq,
    ),
    Rival(
        "SKIP LOCKED",
        "insert into rival.plain (body) values ('{\"id\": 1}')",
        "insert into rival.plain (body) select '{\"id\": 1}' from generate_series(1, %s)",
        _plain,
    ),
)
