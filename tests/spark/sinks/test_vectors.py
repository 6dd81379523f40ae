"""Vectors in tables: attempts die or are overtaken at any point, and each event is stored once."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from random import Random

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pgque_dagster.client import Batch, Client, InvalidArgument, PgqueError
from pgque_dagster.client.sharded_claim import ShardedClaim
from tests.conftest import NewDatabase, install
from tests.spark.conftest import revenue_of_orders
from tests.support.queues.events import publish
from tests.support.spark.vector_tables import KINDS, ROWS, At, Table, write_by_arrow

SHARDS = ("eu", "us", "asia")
POINTS = ("claimed", "checked", "read", "commit", "committed", "acked")
SEEDS = 100


class Died(Exception):
    """Takes the place of a process's death."""


@pytest.fixture(autouse=True)
def _write_by_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    write_by_arrow(monkeypatch)


@pytest.fixture(scope="module")
def shards(new_database: NewDatabase) -> Iterator[dict[str, Client]]:
    """Clients of three databases, each with the queue orders and its consumer revenue."""
    with ExitStack() as stack:
        urls = [new_database(install, revenue_of_orders) for _ in SHARDS]
        yield {
            shard: stack.enter_context(Client(stack.enter_context(url)))
            for shard, url in zip(SHARDS, urls, strict=True)
        }


@pytest.fixture
def clients(shards: dict[str, Client]) -> Iterator[dict[str, Client]]:
    """The same, with nothing to consume."""
    yield shards
    for client in shards.values():
        while batch := claim(client):
            batch.ack()
        client.purge_dead_letters("orders", timedelta(0))


@pytest.fixture(params=KINDS)
def table(
    request: pytest.FixtureRequest, tmp_path: Path, new_database: NewDatabase
) -> Iterator[Table]:
    """An empty table of each kind."""
    with new_database() as url:
        if request.param == "postgres":
            with psycopg.connect(url) as db:
                db.execute("create table numbers (shard text, number bigint)")
        yield KINDS[request.param](tmp_path / "table", url)


def claim(client: Client) -> Batch | None:
    """Claims what is there, after the lease of an earlier attempt."""
    end_lease(client)
    return client.claim("orders", "revenue", owner="a test", ttl=timedelta(minutes=5))


def end_lease(client: Client) -> None:
    """Ends a lease, as if it had run out."""
    lease = client.lease_info("orders", "revenue")
    if lease is not None and lease.is_live:
        with psycopg.connect(client.url, autocommit=True) as db:
            db.execute(
                "select pgque.release_batch(%s, %s, %s)", (lease.batch_id, lease.owner, lease.epoch)
            )


def attempt(table: Table, clients: dict[str, Client], at: At = lambda point: None) -> None:
    """Consumes a batch of each shard, as a step does."""
    found = {shard: claim(client) for shard, client in clients.items()}
    claims = {shard: batch for shard, batch in found.items() if batch is not None}
    if not claims:
        return
    at("claimed")
    claimed = ShardedClaim(claims)
    for shard, stored in table.sink.stored(claimed).items():
        if isinstance(stored, InvalidArgument):
            raise stored
        claims.pop(shard).ack()
        at("acked")
        table.sink.forget(claimed.members[shard], stored)
    if not claims:
        return
    at("checked")
    vector = ShardedClaim(claims)
    rows: list[tuple[str, int]] = []
    for shard, batch in claims.items():
        for event in batch.events():
            number = json.loads(str(event.payload))
            if number < 0:
                batch.dead_letter([event.msg_id], reason=f"{number}")
            else:
                rows.append((shard, number))
    columns = [pa.array([row[n] for row in rows], field.type) for n, field in enumerate(ROWS)]
    given = pa.Table.from_arrays(columns, schema=ROWS)
    table.store(vector, given, at)
    at("committed")
    for batch in claims.values():
        batch.ack()
        at("acked")
        table.sink.forget(batch, vector.batch_id)


def left(clients: dict[str, Client]) -> list[str]:
    for client in clients.values():
        end_lease(client)
    return [
        shard
        for shard, client in clients.items()
        if client.next_batch("orders", "revenue") is not None
    ]


def dead(clients: dict[str, Client]) -> list[tuple[str, str | None]]:
    return sorted(
        (shard, letter.reason)
        for shard, client in clients.items()
        for letter in client.dead_letters("orders")
    )


@pytest.mark.parametrize("point", [pytest.param("claimed", marks=pytest.mark.slow), *POINTS[1:]])
def test_an_attempt_that_dies_is_completed_from_the_record(
    clients: dict[str, Client], table: Table, point: str
) -> None:
    for client in clients.values():
        publish(client, [1, -1])

    def die(reached: str) -> None:
        if reached == point:
            raise Died

    with pytest.raises(Died):
        attempt(table, clients, die)
    # Each one alone, as those of runs that failed.
    for shard in SHARDS:
        attempt(table, {shard: clients[shard]})

    assert table.rows() == [(shard, 1) for shard in sorted(SHARDS)]
    assert dead(clients) == [(shard, "-1") for shard in sorted(SHARDS)]
    assert left(clients) == []


@pytest.mark.parametrize(
    ("point", "some"),
    [
        *(("claimed", SHARDS), ("checked", ("us",)), ("read", ("us",)), ("commit", SHARDS)),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                *(("claimed", ("us",)), ("checked", SHARDS)),
                *(("read", SHARDS), ("commit", ("us",))),
            )
        ),
    ],
)
def test_an_attempt_that_is_overtaken_stores_nothing(
    clients: dict[str, Client], table: Table, point: str, some: tuple[str, ...]
) -> None:
    for client in clients.values():
        publish(client, [1, -1])
    overtaking = [lambda: attempt(table, {shard: clients[shard] for shard in some})]

    def at(reached: str) -> None:
        if reached == point and overtaking:
            overtaking.pop()()

    with pytest.raises(PgqueError):
        attempt(table, clients, at)
    assert table.rows() == [(shard, 1) for shard in sorted(some)]

    attempt(table, clients)
    assert table.rows() == [(shard, 1) for shard in sorted(SHARDS)]
    assert dead(clients) == [(shard, "-1") for shard in sorted(SHARDS)]
    assert left(clients) == []


def test_what_a_stale_attempt_stored_before_a_later_one_is_acked_by_the_next(
    clients: dict[str, Client], table: Table
) -> None:
    """It had renewed its leases before the later one claimed, and commits before that one does."""
    for client in clients.values():
        publish(client, [1])
    two = {shard: clients[shard] for shard in ("eu", "us")}
    claims = {shard: batch for shard, client in two.items() if (batch := claim(client)) is not None}
    stale = ShardedClaim(claims)
    renewals: list[None] = []
    stale.renew = lambda: renewals.append(None)  # type: ignore[method-assign]

    def overtaken(reached: str) -> None:
        if reached == "commit":
            rows = pa.Table.from_pylist([{"shard": s, "number": 1} for s in two], schema=ROWS)
            with suppress(InvalidArgument):
                table.store(stale, rows, lambda point: None)

    with pytest.raises(InvalidArgument, match="another run has stored a batch of"):
        attempt(table, {shard: clients[shard] for shard in ("us", "asia")}, overtaken)

    assert renewals
    assert table.rows() == [("eu", 1), ("us", 1)]
    attempt(table, clients)
    assert table.rows() == [("asia", 1), ("eu", 1), ("us", 1)]
    assert left(clients) == []


def test_a_vector_is_written_once(clients: dict[str, Client], table: Table) -> None:
    publish(clients["eu"], [1])
    batch = claim(clients["eu"])
    assert batch is not None
    vector = ShardedClaim({"eu": batch})
    rows = pa.Table.from_pylist([{"shard": "eu", "number": 1}], schema=ROWS)
    table.store(vector, rows, lambda point: None)

    with pytest.raises(InvalidArgument):
        table.store(vector, rows, lambda point: None)

    assert table.rows() == [("eu", 1)]


@pytest.mark.parametrize("table", ["delta", "iceberg"], indirect=True)
def test_a_record_that_is_gone_is_an_error(clients: dict[str, Client], table: Table) -> None:
    publish(clients["eu"], [1, -1])
    dying = {"committed": Died()}

    def die(reached: str) -> None:
        if error := dying.get(reached):
            raise error

    with pytest.raises(Died):
        attempt(table, clients, die)
    (record,) = table.records()
    record.unlink()

    with pytest.raises(PgqueError, match="cannot be read"):
        attempt(table, clients)
    assert claim(clients["eu"]) is not None


@pytest.mark.parametrize("table", ["delta", "iceberg"], indirect=True)
def test_the_record_of_a_member_is_removed_by_whoever_acks_it(
    clients: dict[str, Client], table: Table
) -> None:
    for client in clients.values():
        publish(client, [1, -1])
    acks = []

    def die(reached: str) -> None:
        if reached == "acked":
            acks.append(reached)
        if len(acks) == 2:
            raise Died

    with pytest.raises(Died):
        attempt(table, clients, die)
    assert len(table.records()) == 2

    attempt(table, clients)

    # That of the member after whose ack the first attempt died.
    assert len(table.records()) == 1
    assert dead(clients) == [(shard, "-1") for shard in sorted(SHARDS)]


@pytest.mark.parametrize("table", ["delta", "iceberg"], indirect=True)
def test_a_table_is_maintained_meanwhile(
    clients: dict[str, Client], table: Table, spark: SparkSession
) -> None:
    maintaining = [lambda: table.sink.maintain(spark, table.url)]

    def maintained(reached: str) -> None:
        if reached == "commit" and maintaining:
            done = maintaining.pop()()
            assert done.by == 1
            assert done.replaced == 2

    def die(reached: str) -> None:
        if reached == "commit":
            raise Died

    for _ in range(2):
        publish(clients["eu"], [1])
        attempt(table, clients)
    publish(clients["eu"], [2])
    attempt(table, clients, maintained)
    assert not maintaining
    publish(clients["eu"], [3])
    with pytest.raises(Died):
        attempt(table, clients, die)
    attempt(table, clients)
    assert table.rows() == [("eu", 1), ("eu", 1), ("eu", 2), ("eu", 3)]

    files = set(table.location.rglob("data/*/*.parquet"))
    for path in files:
        os.utime(path, (0, 0))
    table.sink.maintain(spark, table.url, retention=timedelta(days=1))

    # That of the attempt that died; those that were united are in an older version.
    gone = files - set(table.location.rglob("data/*/*.parquet"))
    assert len(gone) == 1
    publish(clients["eu"], [4])
    attempt(table, clients)
    assert table.rows()[-1] == ("eu", 4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_happens_each_event_is_stored_once(
    clients: dict[str, Client], table: Table, seed: int
) -> None:
    """Attempts at any shards die, or are paused while others work, at any point."""
    choose = Random(seed)
    good: list[tuple[str, int]] = []
    bad: list[tuple[str, str | None]] = []

    def send() -> None:
        shard = choose.choice(SHARDS)
        number = len(good) + len(bad) + 1
        sign = choose.choice((1, 1, 1, -1))
        publish(clients[shard], [sign * number])
        if sign > 0:
            good.append((shard, number))
        else:
            bad.append((shard, f"-{number}"))

    def work(depth: int = 0) -> None:
        some = choose.sample(SHARDS, choose.randint(1, len(SHARDS)))

        def at(reached: str) -> None:
            match choose.random():
                case x if x < 0.05:
                    raise Died
                case x if x < 0.2 and depth < 3:
                    choose.choice((send, lambda: work(depth + 1)))()

        with suppress(Died, PgqueError):
            attempt(table, {shard: clients[shard] for shard in some}, at)

    for _ in range(25):
        choose.choice((send, work))()
    while left(clients):
        attempt(table, clients)

    assert table.rows() == sorted(good)
    assert dead(clients) == sorted(bad)
