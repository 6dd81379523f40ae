"""Micro-batches of Structured Streaming in Postgres: each counts once under each name."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pgque_dagster.client import Client, InvalidArgument
from pgque_dagster.client.rights import Connection
from pgque_dagster.spark import PostgresSink, once_per_batch
from tests.conftest import Server
from tests.support.queues.events import publish
from tests.support.queues.sql import connect, rows
from tests.support.servers.databases import empty_database
from tests.support.spark.streams import Stream

TABLE = "create table balance (account text primary key, amount numeric not null)"
ADD: dict[str, Any] = {"key": ["account"], "mode": "add"}
Foreach = Callable[[DataFrame, int], None]


@pytest.fixture
def url(server: Server) -> Iterator[str]:
    with empty_database(server) as made:
        with connect(made) as db:
            db.execute(TABLE)
        yield made


class Arriving:
    """Files that come to a folder, and a query over them that is run again and again."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        (folder / "in").mkdir()

    def run(self, foreach: Foreach, amount: int | None = None) -> None:
        """Runs the query over what came; something comes now if there is an amount."""
        arriving = self.folder / "in"
        if amount is not None:
            text = json.dumps({"account": "x", "amount": amount})
            (arriving / str(len(list(arriving.iterdir())))).write_text(text)
        query = (
            self.spark.readStream.schema("account string, amount bigint")
            .json(str(arriving))
            .writeStream.foreachBatch(foreach)
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)

    def committed(self) -> list[str]:
        """The micro-batches that the checkpoint has as done."""
        commits = self.folder / "checkpoint" / "commits"
        return sorted(path.name for path in commits.iterdir() if path.name.isdigit())

    def forget_last_commit(self) -> None:
        """As if the driver was killed after the effect, before Spark wrote its checkpoint."""
        last = self.committed()[-1]
        for name in (last, f".{last}.crc"):
            (self.folder / "checkpoint" / "commits" / name).unlink()


@pytest.fixture
def arriving(spark: SparkSession, tmp_path: Path) -> Arriving:
    return Arriving(spark, tmp_path)


def balances(url: str) -> list[tuple[Any, ...]]:
    with connect(url) as db:
        return rows(db, "select account, amount::int from balance order by 1")


def insert(account: object) -> Callable[[DataFrame, int, Connection], None]:
    """An effect that adds a row."""

    def apply(frame: DataFrame, batch_id: int, connection: Connection) -> None:
        connection.execute("insert into balance values (%s, %s)", (str(account), frame.count()))

    return apply


def both(first: Foreach, second: Foreach) -> Foreach:
    """Has both do something with a micro-batch, one after the other."""

    def write(frame: DataFrame, batch_id: int) -> None:
        first(frame, batch_id)
        second(frame, batch_id)

    return write


STORES: dict[str, Callable[[str], Foreach]] = {
    "sink": lambda url: PostgresSink("balance", url=url, **ADD).foreach_batch(),
    "effect": lambda url: once_per_batch(
        url,
        "any",
        lambda frame, _, connection: connection.execute(
            "insert into balance as b values ('x', %s) on conflict (account) do update"
            " set amount = b.amount + excluded.amount",
            (frame.count(),),
        ),
    ),
}


def test_a_micro_batch_counts_once_under_each_name_in_each_checkpoint(
    url: str, arriving: Arriving
) -> None:
    def foreach() -> Foreach:
        sink, named = (
            PostgresSink("balance", url=url, name=name, **ADD).foreach_batch()
            for name in (None, "credits")
        )
        return both(both(sink, named), STORES["effect"](url))

    arriving.run(foreach(), 5)
    arriving.forget_last_commit()
    # Spark repeats it, as it was.
    arriving.run(foreach(), 100)
    assert balances(url) == [("x", 212)]

    # Its micro-batches count from 0 again, and must not be taken for the first one's.
    shutil.rmtree(arriving.folder / "checkpoint")
    arriving.run(PostgresSink("balance", url=url, **ADD).foreach_batch())
    assert balances(url) == [("x", 317)]


class Killed:
    """A query over a queue that is killed after it stored a micro-batch, before it committed it."""

    def __init__(self, client: Client, spark: SparkSession, folder: Path, store: Foreach) -> None:
        self.client, self.checkpoint = client, folder / "checkpoint"
        self._stream, self._store = Stream(spark, client.url, self.checkpoint), store
        publish(client, ["a", "b"])
        with pytest.raises(PySparkException, match="killed"):
            self.run(killed=True)

    def run(self, *, killed: bool = False) -> None:
        def store(events: DataFrame, number: int) -> None:
            self._store(events.selectExpr("'x' as account", "1 as amount"), number)
            if killed:
                raise RuntimeError("killed")

        self._stream.drain(store)


@pytest.mark.parametrize("store", ["sink", pytest.param("effect", marks=pytest.mark.slow)])
def test_the_same_ticks_count_once_also_with_another_checkpoint(
    client: Client, spark: SparkSession, tmp_path: Path, url: str, store: str
) -> None:
    query = Killed(client, spark, tmp_path, STORES[store](url))
    shutil.rmtree(query.checkpoint)

    query.run()

    assert balances(url) == [("x", 2)]


@pytest.mark.slow
def test_ticks_that_were_stored_in_part_are_refused_with_another_checkpoint(
    client: Client, spark: SparkSession, tmp_path: Path, url: str
) -> None:
    query = Killed(client, spark, tmp_path, STORES["sink"](url))
    publish(client, ["c"])
    for _ in range(2):
        shutil.rmtree(query.checkpoint)
        told = r"has events of orders/revenue/\d+ from tick 1 \w+ already, up to another tick"
        with pytest.raises(PySparkException, match=told):
            query.run()

    with connect(url) as db:
        ((row,),) = rows(db, "select batch from pgque_sink_ledger where batch like '% to %'")
    end = int(row.split(" to tick ")[1].split()[0])
    with connect(client.url) as db:
        db.execute("update pgque.position_log set lease_until = now() where sub_batch is not null")
        db.execute("select pgque.register_consumer_at('orders', 'revenue', %s)", (end,))
    shutil.rmtree(query.checkpoint)
    query.run()

    assert balances(url) == [("x", 3)]


@pytest.mark.slow
def test_a_micro_batch_that_an_earlier_version_stored_counts_once(
    client: Client, spark: SparkSession, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr("pgque_dagster.spark.sinks.postgres.once._ticks", lambda *_: ())
        query = Killed(client, spark, tmp_path, STORES["sink"](url))

    query.run()

    assert balances(url) == [("x", 2)]


@contextmanager
def run_of_a_query(spark: SparkSession, name: str) -> Iterator[None]:
    """Spark runs the jobs of a query under the id of its run."""
    before = spark.sparkContext.getLocalProperty("spark.jobGroup.id")
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", name)
    yield
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", before)


FAULTS = {
    "fail": "half done",
    "raise": "half done",
    "commit": r"commit\(\) forbidden",
    "raw end": "the transaction in which .* was ended",
    "rollback": "the transaction in which .* was ended",
}


def test_an_effect_that_fails_leaves_nothing_and_is_tried_again(
    url: str, spark: SparkSession
) -> None:
    """A transaction block is a savepoint: it commits with the ledger's row, or not at all."""

    def add(frame: DataFrame, batch_id: int, connection: Connection) -> None:
        if fault == "fail":
            connection.execute("insert into balance values ('half', 1)")
            raise RuntimeError("half done")
        with connection.transaction():
            connection.execute("insert into balance values (%s, 1)", (str(batch_id),))
        if fault == "raise":
            raise RuntimeError("half done")
        if fault == "commit":
            connection.commit()
        if fault == "raw end":
            connection.execute("rollback")
        if fault == "rollback":
            raise psycopg.Rollback

    once = once_per_batch(url, "any", add, query="q")
    for batch_id, (fault, told) in enumerate(FAULTS.items()):
        with run_of_a_query(spark, fault), pytest.raises(Exception, match=told):
            once(spark.range(1), batch_id)
        assert len(balances(url)) == batch_id
        fault = ""
        for number in range(2):
            with run_of_a_query(spark, f"{batch_id} {number}"):
                once(spark.range(1), batch_id)
        assert balances(url)[-1] == (str(batch_id), 1)


def test_two_drivers_at_one_micro_batch_count_once(url: str, spark: SparkSession) -> None:
    frame = spark.range(1)

    def add(frame: DataFrame, batch_id: int, connection: Connection) -> None:
        if batch_id == 0 and not done:
            done.append(True)
            with run_of_a_query(spark, "a run of the other driver"):
                once_per_batch(url, "any", add, query="q")(frame, 0)
        connection.execute("insert into balance values ('x', 7) on conflict do nothing")
        connection.execute("update balance set amount = amount + 1")

    done: list[bool] = []
    with run_of_a_query(spark, "a run"):
        once_per_batch(url, "any", add, query="q")(frame, 0)

    assert balances(url) == [("x", 8)]


def test_a_stream_that_writes_twice_under_one_name_fails_and_stays_where_it_is(
    url: str, arriving: Arriving
) -> None:
    debits, credits, named = (
        PostgresSink(table, url=url, name=name, **ADD).foreach_batch()
        for table, name in (("balance", None), ("public.balance", None), ("balance", "credits"))
    )
    with pytest.raises(PySparkException, match=r"was already written to public\.balance"):
        arriving.run(both(debits, credits), 5)
    assert arriving.committed() == []

    arriving.run(both(debits, named))

    assert arriving.committed() == ["0"]
    assert balances(url) == [("x", 10)]


def test_two_effects_of_one_name_are_refused(url: str, spark: SparkSession) -> None:
    first, second, other = (
        once_per_batch(url, name, insert(account), query="q")
        for name, account in (("balances", 1), ("balances", 2), ("more", 2))
    )
    with run_of_a_query(spark, "a run"):
        first(spark.range(1), 0)
        with pytest.raises(InvalidArgument, match="was already written to balances"):
            second(spark.range(1), 0)
        other(spark.range(1), 0)

    assert balances(url) == [("1", 1), ("2", 1)]


def test_a_frame_of_no_stream_needs_a_query(url: str, spark: SparkSession) -> None:
    with pytest.raises(InvalidArgument, match="not a micro-batch of a streaming query"):
        once_per_batch(url, "any", lambda *_: None)(spark.range(1), 0)
    with pytest.raises(InvalidArgument, match="needs the url"):
        PostgresSink("balance").foreach_batch()
