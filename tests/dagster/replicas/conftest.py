"""What the tests of replicas share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.dagster.replicas.shop import Shop
from tests.support.queues.sql import connect


@pytest.fixture
def target() -> Callable[[str], Any]:
    """Where the replicas are, given a folder; by default in PostgreSQL."""
    return lambda folder: None


@pytest.fixture
def shop(
    database_url: str, spark: SparkSession, tmp_path: Path, target: Callable[[str], Any]
) -> Shop:
    with connect(database_url) as db:
        db.execute(
            "create table orders (id int primary key, total numeric(9,2));"
            "comment on column orders.total is 'in euros';"
            "create table items (id int primary key, name text);"
            "insert into orders values (1, 9.5); insert into items values (1, 'tea')"
        )
    return Shop(database_url, spark, tmp_path, target=target(str(tmp_path)))
