"""The job that maintains Delta tables."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pgque_dagster import build_delta_maintenance_job


@pytest.fixture
def location(tmp_path: Path) -> str:
    """A table of five small files."""
    location = str(tmp_path / "table")
    for number in range(5):
        write_deltalake(location, pa.table({"number": [number]}), mode="append")
    return location


def test_small_files_are_united(location: str) -> None:
    job = build_delta_maintenance_job([location])

    assert job.execute_in_process().success

    assert len(DeltaTable(location).file_uris()) == 1
    numbers = DeltaTable(location).to_pyarrow_table()["number"].to_pylist()
    assert sorted(numbers) == list(range(5))


def test_a_dry_run_changes_nothing(location: str) -> None:
    job = build_delta_maintenance_job([location])
    config = {"ops": {"pgque_maintain_delta_tables_op": {"config": {"dry_run": True}}}}

    assert job.execute_in_process(run_config=config).success

    assert len(DeltaTable(location).file_uris()) == 5


def test_a_retention_that_may_delete_files_of_running_attempts_is_refused(location: str) -> None:
    job = build_delta_maintenance_job([location])
    config = {"ops": {"pgque_maintain_delta_tables_op": {"config": {"retention_days": 0.5}}}}

    assert not job.execute_in_process(run_config=config, raise_on_error=False).success

    assert len(DeltaTable(location).file_uris()) == 5
