"""How executors find the database: by the URL, or by a variable or file that holds it."""

from pathlib import Path

import pytest

from pgque_dagster import PgqueResource, SparkBatch
from pgque_dagster.spark import DatabaseAddress
from pgque_dagster.spark import batch as batch_module
from tests.dagster.orders import Orders, Result, consuming, error_of


@pytest.fixture(autouse=True)
def _executors_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_module, "DRIVER_SIDE_EVENTS", -1)


def consume(orders: Orders, **executors: str) -> tuple[Result, list[DatabaseAddress]]:
    """Has executors count a batch; returns the address that they were given."""
    seen = []

    @consuming()
    def count(batch: SparkBatch) -> int:
        seen.append(batch_module.attempt_of(batch).address)
        return batch.events().count()

    orders.publish(["a", "b"])
    resource = PgqueResource(url=orders.client.url, **executors)
    return orders.run(count, resources={"pgque": resource}), seen


def test_executors_read_the_url_where_the_resource_says(orders: Orders, tmp_path: Path) -> None:
    (tmp_path / "url").write_text(orders.client.url)

    result, seen = consume(orders, executors_url_file=str(tmp_path / "url"))

    assert result.output_for_node("count") == 2
    assert orders.client.url not in str(seen[0].options())


def test_executors_without_what_the_resource_says_fail_the_run_by_its_name(orders: Orders) -> None:
    result, _ = consume(orders, executors_url_env="NO_SUCH_SECRET_URL")

    assert "NO_SUCH_SECRET_URL is not set" in error_of(result)
