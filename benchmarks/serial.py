"""Measures the add-on qgres against functions that update, insert and delete rows as Qgres does.

The rival keeps its counter and its consumers' positions in rows that it updates, and its entries in
a table from which it deletes. It has the keys and foreign keys of Qgres, but not its triggers,
which recheck each number.
"""

import itertools
import time
from collections.abc import Callable

from benchmarks.client import without_sync
from benchmarks.measure import Contender, Result, medians, timed
from benchmarks.servers import Connection, connect, prepared, value
from pgque_dagster import installer

_CALLS = 500
_PAGE = 100

_RIVAL = """
create schema rival;
create table rival.queue (queue_id int primary key);
create table rival.counter (
    queue_id int primary key references rival.queue, next_number int not null);
create table rival.consumer (
    queue_id int references rival.counter, consumer text, last_number int not null,
    primary key (queue_id, consumer));
create table rival.entry (
    queue_id int references rival.counter, number int, payload text,
    primary key (queue_id, number));
create table rival.heap (queue_id int not null references rival.queue, payload text);
create function rival.publish(i_queue int, i_payload text) returns int language plpgsql as $$
declare v_number int;
begin
    update rival.counter set next_number = next_number + 1 where queue_id = i_queue
    returning next_number - 1 into v_number;
    insert into rival.entry values (i_queue, v_number, i_payload);
    return v_number;
end $$;
create function rival.consume(i_queue int, i_consumer text, i_limit int)
returns table (num int, body text) language plpgsql as $$
declare v_last int; v_new int;
begin
    select last_number into v_last from rival.consumer
    where queue_id = i_queue and consumer = i_consumer for update;
    for num, body in
        select e.number, e.payload from rival.entry e
        where e.queue_id = i_queue and e.number > v_last order by e.number limit i_limit
    loop
        v_new := num;
        return next;
    end loop;
    if v_new is not null then
        update rival.consumer set last_number = v_new
        where queue_id = i_queue and consumer = i_consumer;
        delete from rival.entry e
        where e.queue_id = i_queue and e.number <= (
            select min(c.last_number) from rival.consumer c where c.queue_id = i_queue);
    end if;
end $$;
create function rival.add(i_queue int, i_payload text) returns void language plpgsql as $$
begin
    insert into rival.heap values (i_queue, i_payload);
end $$;
create function rival.remove(i_queue int, i_limit int) returns setof text language plpgsql as $$
begin
    return query
    delete from rival.heap h
    using (select ctid from rival.heap where queue_id = i_queue limit i_limit for update) chosen
    where h.ctid = chosen.ctid
    returning h.payload;
end $$;
insert into rival.queue values (1), (2);
insert into rival.counter values (1, 1);
insert into rival.consumer values (1, 'c', 0);
"""

_OURS = {
    "publish": "select qgres.\"Publish\"('sp', 'some payload of an entry')",
    "consume": "select count(*) from qgres.consume('sp', 'c', {})",
    "add": "select qgres.add('sr', 'some payload of an entry')",
    "remove": "select count(*) from qgres.\"Remove\"('sr', {})",
}
_THEIRS = {
    "publish": "select rival.publish(1, 'some payload of an entry')",
    "consume": "select count(*) from rival.consume(1, 'c', {})",
    "add": "select rival.add(2, 'some payload of an entry')",
    "remove": "select count(*) from rival.remove(2, {})",
}
_SIDES = {"qgres": _OURS, "update/delete": _THEIRS}


def measure(url: str, *, rounds: int, held_seconds: float = 30) -> list[Result]:
    """Returns the results for single calls, pages, and a held xmin horizon."""
    installer.install(url, addons=["qgres"])
    with connect(without_sync(url)) as connection:
        connection.execute(_RIVAL.encode())
        value(connection, "select qgres.queue__create('sp', 'SP')")
        value(connection, "select qgres.queue__create('sr', 'SR')")
        value(connection, "select qgres.consumer__register('sp', 'c')::text")
        results = _compare(connection, rounds)
        return results + _held(url, connection, held_seconds)


def _compare(connection: Connection, rounds: int) -> list[Result]:
    cases = {
        "publish an entry": ("publish", None, _CALLS),
        "consume 1": ("publish", "consume", 1),
        f"consume {_PAGE}": ("publish", "consume", _PAGE),
        "add an entry": ("add", None, _CALLS),
        "remove 1": ("add", "remove", 1),
        f"remove {_PAGE}": ("add", "remove", _PAGE),
    }
    results = []
    for what, (write, read, page) in cases.items():
        costs = medians(
            [
                Contender(name, _case(connection, calls, write, read, page))
                for name, calls in _SIDES.items()
            ],
            rounds,
        )
        ours, theirs = costs["qgres"], costs["update/delete"]
        detail = f"{ours * 1e6:,.1f}/{theirs * 1e6:,.1f} µs an entry"
        results.append(Result(what, "update/delete", theirs / ours, ">=", None, detail))
    return results


def _case(
    connection: Connection, calls: dict[str, str], write: str, read: str | None, page: int
) -> Callable[[], float]:
    """Times writes, or reads of entries written beforehand."""
    send = prepared(connection, calls[write])
    reader = "consume" if write == "publish" else "remove"
    empty = prepared(connection, calls[reader].format("null"))
    take = prepared(connection, calls[read].format(page)) if read else None

    def run() -> float:
        if take is None:
            cost = timed(send, _CALLS)
        else:
            for _ in range(_CALLS):
                send()
            cost = timed(take, _CALLS // page) / page
        empty()
        value(connection, "select qgres.maint()")
        return cost

    return run


def _held(url: str, connection: Connection, seconds: float) -> list[Result]:
    """Publishes, consumes, adds and removes one entry at a time while an old snapshot is held."""
    rates: dict[str, list[float]] = {}
    dead: dict[str, int] = {}
    with connect(url) as holder:
        holder.execute("begin isolation level repeatable read")
        holder.execute("select txid_current_snapshot()")
        for name, calls in _SIDES.items():
            run = [prepared(connection, calls[each].format(1)) for each in calls]
            rates[name] = list(_rates(run, seconds))
        for name, pattern in zip(_SIDES, ("qgres", "rival"), strict=True):
            time.sleep(2)  # statistics are reported once a second
            sql = "select sum(n_dead_tup)::bigint from pg_stat_user_tables where schemaname = %s"
            dead[name] = value(connection, sql, pattern)
        holder.execute("rollback")
    ours, theirs = rates["qgres"], rates["update/delete"]
    return [
        Result(
            f"all four after {seconds:.0f} s of held xmin",
            "update/delete",
            ours[-1] / theirs[-1],
            ">=",
            None,
            f"{ours[-1]:,.0f}/{theirs[-1]:,.0f} per s; at the start {ours[0]:,.0f}"
            f"/{theirs[0]:,.0f}",
        ),
        Result(
            "dead rows then",
            "update/delete",
            dead["qgres"],
            "<=",
            10,
            f"{dead['qgres']:,}/{dead['update/delete']:,}",
        ),
    ]


def _rates(calls: list[Callable[..., object]], seconds: float) -> list[float]:
    """Returns the cycles per second in each sixth of the time."""
    rates = []
    for _ in range(6):
        start = time.perf_counter()
        for count in itertools.count(1):
            for call in calls:
                call()
            passed = time.perf_counter() - start
            if passed > seconds / 6:
                rates.append(count / passed)
                break
    return rates
