"""The IO managers: storing a batch again changes nothing, whatever attempt died before."""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from pgque_dagster import DeltaBatchIOManager, PgqueResource, PostgresBatchIOManager, SparkBatch
from pgque_dagster.client import InvalidArgument
from tests.dagster.orders import Orders, Result, consuming, error_of, materialized, values
from tests.support.queues.sql import connect, rows
from tests.support.spark.stored_tables import iceberg_catalog

ROOT = Path(__file__).parents[3]
BALANCE = "create table balance (account text primary key, amount bigint not null)"
POINTS = ("before the write", "while executors write", "after staging", "inside the ack")


def publish_amounts(orders: Orders) -> Counter[str]:
    oracle: Counter[str] = Counter()
    for number in range(20):
        oracle[f"account {number % 3}"] += number
    orders.publish([{"account": f"account {n % 3}", "amount": n} for n in range(20)])
    with connect(orders.client.url) as db:
        db.execute(BALANCE.encode())
    return oracle


def balances(orders: Orders) -> Counter[str]:
    with connect(orders.client.url) as db:
        return Counter(dict(rows(db, "select account, amount::int from balance")))


def dying_at(point: str) -> Callable[[str], None]:
    def at(reached: str) -> None:
        if reached == point:
            raise OSError(f"died {point}")

    return at


class Dying(PostgresBatchIOManager):
    """Dies once the rows are staged, if that is the point."""

    point: str

    def handle_output(self, context: dg.OutputContext, obj: DataFrame) -> None:
        super().handle_output(context, obj)
        dying_at(self.point)("after staging")


def run(orders: Orders, point: str) -> Result:
    """Materializes an asset from the next batch, and dies at a point."""
    at = dying_at(point)

    @consuming(io_manager_key="balances")
    def balance(batch: SparkBatch) -> DataFrame:
        at("before the write")
        batch.before_ack(lambda connection: at("inside the ack"))
        frame = batch.payload("account string, amount bigint")
        reach = f.udf(lambda account: at("while executors write") or account)
        return frame.withColumn("account", reach("account"))

    pgque = PgqueResource(url=orders.client.url)
    dying = Dying(pgque=pgque, mode="add", key=["account"], point=point)
    return orders.run(balance, resources={"balances": dying})


def test_each_event_counts_once_in_postgres_when_a_run_fails_at_any_point(orders: Orders) -> None:
    oracle = publish_amounts(orders)

    for point in POINTS:
        assert f"died {point}" in error_of(run(orders, point))
        assert balances(orders) == Counter()
    assert run(orders, "nowhere").success
    assert balances(orders) == oracle
    assert orders.is_consumed()


def test_a_table_has_the_name_that_the_asset_gives_and_is_read_downstream(orders: Orders) -> None:
    oracle = publish_amounts(orders)
    read: list[Any] = []

    @consuming(metadata={"dagster/table_name": "public.balance"}, io_manager_key="balances")
    def sums(batch: SparkBatch) -> DataFrame:
        totals = batch.payload("account string, amount bigint").groupBy("account").sum("amount")
        return totals.toDF("account", "amount")

    @dg.asset
    def downstream(sums: DataFrame) -> None:
        read.extend(sums.collect())

    pgque = PgqueResource(url=orders.client.url)
    table = PostgresBatchIOManager(pgque=pgque, mode="upsert", key=["account"])
    result = orders.run(sums, downstream, resources={"balances": table})
    (made,) = map(values, materialized(result, "sums"))

    assert Counter({row.account: row.amount for row in read}) == oracle
    assert made["pgque/rows"] == 3
    assert "dagster/row_count" not in made
    assert made["dagster/table_name"] == "public.balance"


def test_what_is_no_dataframe_of_a_batch_is_refused_and_the_batch_stays(
    orders: Orders, manager: Any
) -> None:
    @dg.asset
    def stranger() -> int:
        return 1

    orders.publish(["a"])
    number = consuming(name="number")(lambda batch: 1)
    postgres = PostgresBatchIOManager(pgque=PgqueResource(url=orders.client.url))

    for each in (manager, postgres):
        assert "number returned int" in error_of(orders.run(number, manager=each))
        error = error_of(orders.run(stranger, manager=each))
        assert "stranger is not computed from a batch" in error
    assert orders.is_free()


def test_the_assets_of_the_docs_store_in_the_formats_that_they_choose(
    orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "lake.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (text,) = (block for block in blocks if "Definitions(" in block)
    monkeypatch.setenv("PGQUE_URL", orders.client.url)
    made: dict[str, dg.Definitions] = {}
    exec(text.replace("s3://bucket", str(tmp_path)), made)
    orders.client.register_consumer("orders", "lines")
    orders.publish([{"product": "tea", "total": 4.5}, {"product": "tea", "total": 1.5}])

    assert made["defs"].resolve_implicit_global_asset_job_def().execute_in_process().success
    lines = DeltaTable(f"{tmp_path}/tables/lines").to_pyarrow_table()
    assert sorted(lines["total"].to_pylist()) == [1.5, 4.5]
    catalog = iceberg_catalog(orders.client.url)
    revenue = catalog.load_table("sales.revenue").scan().to_arrow()
    assert (revenue["product"].to_pylist(), revenue["total"].to_pylist()) == (["tea"], [6.0])


@pytest.mark.parametrize(("mode", "key"), [("upsert", []), ("append", ["product"])])
def test_a_key_that_does_not_go_with_the_mode_is_refused_at_once(mode: str, key: list[str]) -> None:
    with pytest.raises(InvalidArgument, match=f"mode {mode}"):
        DeltaBatchIOManager(base_dir="output", mode=mode, key=key)
