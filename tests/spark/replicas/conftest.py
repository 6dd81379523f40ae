"""Fixtures of the tests that replicate tables into Delta."""

from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from tests.support.replication import Replication


@pytest.fixture
def replication(database_url: str, spark: SparkSession, tmp_path: Path) -> Replication:
    """A queue for changes, a consumer of it, and a folder for replicas."""
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute("select pgque.create_queue('changes')")
        db.execute("select pgque.register_consumer('changes', 'lake')")
    return Replication(database_url, spark, tmp_path / "lake")
