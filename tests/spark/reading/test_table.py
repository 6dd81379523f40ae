"""Reading a whole table of PostgreSQL: in parallel, in one snapshot, with exact values."""

from datetime import datetime
from decimal import Decimal

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import spark_partition_id

from pgque_dagster.client import InvalidArgument
from pgque_dagster.spark import DatabaseAddress
from pgque_dagster.spark.reading.table import query_batches, read_whole_table
from tests.support.queues.sql import connect


def test_a_postgres_table_is_read_by_tasks_in_one_snapshot_with_numerics_as_decimals(
    database_url: str, spark: SparkSession
) -> None:
    with connect(database_url) as db:
        db.execute("create domain price as numeric(10, 2)")
        can_be_negative = db.info.server_version >= 150_000
        db.execute(
            "create table ledger (id bigint, amount numeric(20, 4), paid price, free numeric,"
            f" hundreds numeric(5, {'-2' if can_be_negative else '0'}), at timestamptz,"
            " local timestamp, name text)"
        )
        db.execute(
            "insert into ledger select n, n / 3.0, 1.5, 12345.678, 700, '2026-01-02 03:04:05Z',"
            " '2026-01-02 03:04:05', repeat('tea', 100) from generate_series(1, 1000) n"
        )

        frame = read_whole_table(
            spark, database_url, DatabaseAddress(database_url), "ledger", blocks=8
        )
        db.execute("update ledger set id = id + 5000, amount = 0")

    types = [field.dataType.simpleString() for field in frame.schema]
    stored = frame.collect()
    ids = [row.id for row in stored]
    assert types == [
        *("bigint", "decimal(20,4)", "decimal(10,2)", "decimal(38,18)"),
        f"decimal({7 if can_be_negative else 5},0)",
        *("timestamp", "timestamp_ntz", "string"),
    ]
    assert sorted(ids) == list(range(1, 1001))
    assert {row.local for row in stored} == {datetime(2026, 1, 2, 3, 4, 5)}
    assert len({row.part for row in frame.select(spark_partition_id().alias("part")).collect()}) > 3
    assert frame.agg({"amount": "sum"}).collect()[0][0] == sum(
        round(Decimal(n) / 3, 4) for n in range(1, 1001)
    )


def test_a_view_and_a_partitioned_table_are_read_whole(
    database_url: str, spark: SparkSession
) -> None:
    with connect(database_url) as db:
        db.execute("create table ledger (id bigint, name text) partition by hash (id)")
        for part in range(3):
            db.execute(
                f"create table ledger_{part} partition of ledger"
                f" for values with (modulus 3, remainder {part})".encode()
            )
        db.execute("insert into ledger select n, repeat('tea', 99) from generate_series(1, 999) n")
        db.execute("create view everything as select * from ledger")

    address = DatabaseAddress(database_url)
    for table in ("everything", "ledger"):
        frame = read_whole_table(spark, database_url, address, table, blocks=4)
        assert sorted(row.id for row in frame.collect()) == list(range(1, 1000))


def test_a_numeric_that_no_decimal_holds_is_refused(database_url: str, spark: SparkSession) -> None:
    with connect(database_url) as db:
        db.execute("create table ledger as select 'NaN'::numeric as amount")

    with pytest.raises(InvalidArgument, match=r"column amount of ledger .* decimal128\(38, 18\)"):
        read_whole_table(spark, database_url, DatabaseAddress(database_url), "ledger")
    with pytest.raises(InvalidArgument, match="there is no table missing"):
        read_whole_table(spark, database_url, DatabaseAddress(database_url), "missing")


def test_a_type_that_is_created_between_reads_is_known(database_url: str) -> None:
    with connect(database_url) as db:
        db.execute("create table first (id int); insert into first values (1)")
        list(query_batches(database_url, "first", "select id from first", None, built_in=True))
        db.execute("create type mood as enum ('sad', 'fine'); create table t (m mood)")
        db.execute("insert into t values ('fine')")

    (rows,) = query_batches(database_url, "t", "select m from t", None)

    assert rows.to_pylist() == [{"m": "fine"}]
