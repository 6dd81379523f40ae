"""Results in a Postgres table: each batch counts once, whatever fails between."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pgque_dagster.client import Batch, Client, InvalidArgument, StagingLost
from pgque_dagster.spark import SparkBatch
from pgque_dagster.spark.address import DatabaseAddress
from pgque_dagster.spark.sinks import PostgresSink
from tests.conftest import Server
from tests.support.databases import empty_database
from tests.support.events import claim, make_queue, publish
from tests.support.queues import connect, rows

SUM = "account string, amount decimal(10,2)"
TABLE = "create table balance (account text primary key, amount numeric, note text default 'new')"


@pytest.fixture
def client(database_url: str) -> Iterator[Client]:
    with Client(database_url) as opened:
        make_queue(opened)
        publish(opened, ["a", "b"])
        with opened.transaction() as connection:
            connection.execute(TABLE)
        yield opened


@pytest.fixture
def elsewhere(server: Server) -> Iterator[str]:
    """Another database with the same table."""
    with empty_database(server) as url:
        with connect(url) as db:
            db.execute(TABLE.encode())
        yield url


def work(client: Client, spark: SparkSession) -> tuple[Batch, SparkBatch]:
    batch = claim(client)
    return batch, SparkBatch(spark, batch, client.url)


def balances(url: str) -> list[tuple[Any, ...]]:
    with connect(url) as db:
        return rows(db, "select account, amount::float, note from balance order by 1")


def stages(url: str) -> list[tuple[Any, ...]]:
    with connect(url) as db:
        return rows(db, "select relname from pg_class where relname ~ '^pgque_stage_'")


def expire_lease(client: Client) -> None:
    with connect(client.url) as db:
        db.execute("update pgque.position_log set lease_until = now() where sub_batch is not null")


def test_rows_count_with_the_ack_and_not_before(client: Client, spark: SparkSession) -> None:
    batch, spark_batch = work(client, spark)

    PostgresSink("balance").write(
        spark_batch, spark.createDataFrame([("x", 1)], SUM.replace("decimal(10,2)", "int"))
    )
    before = balances(client.url)
    batch.ack()

    assert before == []
    assert balances(client.url) == [("x", 1.0, "new")]
    assert stages(client.url) == []


def test_upsert_replaces_the_values_given_and_keeps_the_others(
    client: Client, spark: SparkSession
) -> None:
    with connect(client.url) as db:
        db.execute("insert into balance values ('x', 5, 'kept'), ('z', 9, 'kept')")
    batch, spark_batch = work(client, spark)
    frame = spark.createDataFrame([("x", Decimal("1.5")), ("y", Decimal(2))], SUM)

    PostgresSink("public.balance", key=["account"], mode="upsert").write(spark_batch, frame)
    batch.ack()

    assert balances(client.url) == [("x", 1.5, "kept"), ("y", 2.0, "new"), ("z", 9.0, "kept")]


def test_add_sums_the_batch_and_what_is_there(client: Client, spark: SparkSession) -> None:
    with connect(client.url) as db:
        db.execute("insert into balance values ('x', 5), ('n', null)")
    batch, spark_batch = work(client, spark)
    frame = spark.createDataFrame(
        [
            (account, Decimal(amount))
            for account, amount in zip("xxyn", (1.25, 2, 7, 3), strict=True)
        ],
        SUM,
    ).repartition(3)

    PostgresSink("balance", key=["account"], mode="add").write(spark_batch, frame)
    batch.ack()

    assert [row[:2] for row in balances(client.url)] == [("n", 3.0), ("x", 8.25), ("y", 7.0)]


def test_an_attempt_that_was_released_leaves_nothing_to_the_next(
    client: Client, spark: SparkSession
) -> None:
    sink = PostgresSink("balance", key=["account"], mode="add")
    frame = spark.createDataFrame([("x", 1)], "account string, amount int")
    first, first_spark = work(client, spark)
    sink.write(first_spark, frame)
    first.release()

    second, second_spark = work(client, spark)
    sink.write(second_spark, frame)
    second.ack()

    assert [row[:2] for row in balances(client.url)] == [("x", 1.0)]


def test_an_attempt_that_lost_its_lease_merges_nothing(client: Client, spark: SparkSession) -> None:
    sink = PostgresSink("balance", key=["account"], mode="add")
    frame = spark.createDataFrame([("x", 1)], "account string, amount int")
    late, late_spark = work(client, spark)
    sink.write(late_spark, frame)
    expire_lease(client)
    new, new_spark = work(client, spark)
    sink.write(new_spark, frame)

    with pytest.raises(StagingLost, match="Another attempt at the batch"):
        late.ack()
    new.ack()

    assert [row[:2] for row in balances(client.url)] == [("x", 1.0)]


def test_what_the_server_lost_in_a_crash_keeps_the_batch_open(
    client: Client, spark: SparkSession
) -> None:
    batch, spark_batch = work(client, spark)
    frame = spark.createDataFrame([("x", 1)], "account string, amount int")
    PostgresSink("balance").write(spark_batch, frame)
    with connect(client.url) as db:
        db.execute(f"truncate {stages(client.url)[0][0]}".encode())

    with pytest.raises(StagingLost, match="holds 0 of 1 rows"):
        batch.ack()

    assert balances(client.url) == []
    batch.release()
    assert claim(client).batch_id == batch.batch_id


def test_in_another_database_a_batch_counts_once(
    client: Client, spark: SparkSession, elsewhere: str
) -> None:
    sink = PostgresSink("balance", key=["account"], mode="add", url=elsewhere)
    frame = spark.createDataFrame([("x", 1)], "account string, amount int")
    for _ in range(2):
        batch, spark_batch = work(client, spark)
        sink.write(spark_batch, frame)
        batch.release()
    batch, spark_batch = work(client, spark)
    sink.write(spark_batch, frame)
    batch.ack()
    publish(client, ["c"])
    batch, spark_batch = work(client, spark)
    sink.write(spark_batch, frame)
    batch.ack()

    assert [row[:2] for row in balances(elsewhere)] == [("x", 2.0)]
    assert stages(elsewhere) == []


def test_of_two_attempts_at_once_elsewhere_one_counts(
    client: Client, spark: SparkSession, elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second stages while the first, that was thought dead, has not merged yet."""
    from pgque_dagster.spark.sinks import stage

    sink = PostgresSink("balance", key=["account"], mode="add", url=elsewhere)
    frame = spark.createDataFrame([("x", 1)], "account string, amount int")
    late, late_spark = work(client, spark)
    late.release()
    _, new_spark = work(client, spark)
    fill = stage.Stage.fill

    def overtaken(self: stage.Stage, address: DatabaseAddress, given: Any) -> None:
        fill(self, address, given)
        monkeypatch.setattr(stage.Stage, "fill", fill)
        sink.write(new_spark, frame)

    monkeypatch.setattr(stage.Stage, "fill", overtaken)
    sink.write(late_spark, frame)

    assert [row[:2] for row in balances(elsewhere)] == [("x", 1.0)]


def test_stages_of_dead_drivers_are_removed(
    client: Client, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pgque_dagster.spark.sinks import stage

    frame = spark.createDataFrame([("x", 1)], "account string, amount int")
    sink = PostgresSink("balance", key=["account"], mode="add")
    dead, dead_spark = work(client, spark)
    monkeypatch.setattr(stage, "_PROCESS", "0123abcd")
    sink.write(dead_spark, frame)
    with connect(client.url) as db:
        db.execute("create table pgque_stage_0123456789ab_01234567_1700000000_abcdef ()")
    monkeypatch.undo()
    dead.release()

    batch, spark_batch = work(client, spark)
    sink.write(spark_batch, frame)
    batch.ack()

    assert stages(client.url) == []


def test_stages_of_attempts_of_this_process_that_were_released_are_removed(
    client: Client, spark: SparkSession
) -> None:
    frame = spark.createDataFrame([("x", 1)], "account string, amount int")
    sink = PostgresSink("balance", key=["account"], mode="add")
    for _ in range(2):
        batch, spark_batch = work(client, spark)
        sink.write(spark_batch, frame)
        batch.release()

    batch, spark_batch = work(client, spark)
    sink.write(spark_batch, frame)
    batch.ack()

    assert stages(client.url) == []


@pytest.mark.parametrize(
    ("table", "options", "ddl", "message"),
    [
        ("nowhere", {}, "account string", "there is no table nowhere"),
        ("balance", {}, "account string, colour string", "has no column colour"),
        ("balance", {"mode": "upsert", "key": ["amount"]}, SUM, "primary key or unique index"),
        ("balance", {"mode": "add", "key": ["account"]}, "account string, note string", r"sum\("),
        ("balance", {"mode": "add", "key": ["account"]}, "amount int", "no column account"),
    ],
)
def test_what_the_table_cannot_take_is_named_before_spark_works(
    client: Client,
    spark: SparkSession,
    table: str,
    options: dict[str, Any],
    ddl: str,
    message: str,
) -> None:
    _, spark_batch = work(client, spark)

    with pytest.raises(InvalidArgument, match=message):
        PostgresSink(table, **options).write(spark_batch, spark.createDataFrame([], ddl))

    assert stages(client.url) == []


def test_two_rows_of_one_key_cannot_be_upserted(client: Client, spark: SparkSession) -> None:
    batch, spark_batch = work(client, spark)
    frame = spark.createDataFrame([("x", 1), ("x", 2)], "account string, amount int")
    PostgresSink("balance", key=["account"], mode="upsert").write(spark_batch, frame)

    with pytest.raises(InvalidArgument, match="aggregate them first"):
        batch.ack()

    assert balances(client.url) == []
    assert stages(client.url) == []


@pytest.mark.parametrize("amount", ["bigint(if(id = 2, raise_error('broken'), id))", "-id"])
def test_an_attempt_that_fails_leaves_no_stage(
    client: Client, spark: SparkSession, elsewhere: str, amount: str
) -> None:
    """Whether a task fails, or the table refuses the rows."""
    frame = spark.range(3).selectExpr("string(id) as account", f"{amount} as amount")
    for url in (client.url, elsewhere):
        with connect(url) as db:
            db.execute("alter table balance add check (amount >= 0)")
        batch, spark_batch = work(client, spark)
        sink = PostgresSink("balance", url=None if url == client.url else url)

        with pytest.raises((PySparkException, InvalidArgument), match=r"broken|violates check"):
            sink.write(spark_batch, frame)
            batch.ack()
        batch.release()

        assert balances(url) == []
        assert stages(url) == []


def test_an_attempt_that_finds_the_batch_applied_leaves_no_stage(
    client: Client, spark: SparkSession, elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pgque_dagster.spark.sinks import ledger

    sink = PostgresSink("balance", url=elsewhere)
    frame = spark.createDataFrame([("x", 1)], "account string, amount int")
    first, first_spark = work(client, spark)
    sink.write(first_spark, frame)
    first.release()
    _, late_spark = work(client, spark)
    has = ledger.Ledger.has

    def too_early(self: ledger.Ledger, connection: Any, batch: str) -> bool:
        monkeypatch.setattr(ledger.Ledger, "has", has)
        return False

    monkeypatch.setattr(ledger.Ledger, "has", too_early)
    sink.write(late_spark, frame)

    assert [row[:2] for row in balances(elsewhere)] == [("x", 1.0)]
    assert stages(elsewhere) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "merge"}, "no mode 'merge'"),
        ({"mode": "add"}, "mode add needs a key"),
        ({"key": ["account"]}, "mode append has no key"),
    ],
)
def test_mode_and_key_must_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        PostgresSink("balance", **options)
