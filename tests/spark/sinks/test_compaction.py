"""Files of a table are compacted in steps, by few copies of a row, beside batches."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgque_dagster.client import Client
from pgque_dagster.spark.sinks import compaction
from tests.support.spark.lakes import DeltaLake, IcebergLake

AGAIN = ("number + 10 as number", "name")


@pytest.fixture(params=[DeltaLake, IcebergLake], ids=["delta", "iceberg"])
def lake(
    request: pytest.FixtureRequest,
    client: Client,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    """A table with four files, of which two together are enough for one."""
    found = request.param(client, spark, tmp_path)
    for number in range(3):
        found.store(number)
    found.last = found.batch(3)
    found.write(found.last)
    largest = max(path.stat().st_size for path in found.files())
    monkeypatch.setattr(compaction, "TARGET_FILE_BYTES", largest + 1)
    return found


def after_copying(monkeypatch: pytest.MonkeyPatch, step: Callable[[int], object]) -> None:
    """Has something happen when the rows of a step are copied; it gets the number of the step."""
    rewrite, calls = compaction.rewrite_files, []

    def rewritten(*arguments: Any) -> Any:
        done = rewrite(*arguments)
        calls.append(1)
        step(len(calls))
        return done

    monkeypatch.setattr(compaction, "rewrite_files", rewritten)


def test_only_the_group_of_a_file_that_another_attempt_replaced_stays(
    lake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_copying(monkeypatch, lambda _: lake.take_over(lake.last, *AGAIN))
    commits = lake.commits()

    done = lake.sink().maintain(lake.spark, lake.client.url)

    assert (done.replaced, done.by, done.files) == (2, 1, 3)
    assert lake.commits() == commits + 2
    assert lake.numbers() == [0, 1, 2, 13]
    assert len(list(lake.folder.rglob("compacted-*/*.parquet"))) == 1


def test_a_step_that_fails_takes_nothing_from_earlier_ones(
    lake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(step: int) -> None:
        if step == 2:
            raise OSError("the disk is full")

    monkeypatch.setattr(compaction, "_STEP_BYTES", 1)
    after_copying(monkeypatch, fail)
    with pytest.raises(OSError, match="full"):
        lake.maintain()
    assert len(lake.counted()) == 3
    lake.take_over(lake.last)
    assert lake.numbers() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("per_run", "size"), [(60, 30_000), (10, 30_000), (60, 1_000_000), (3, 200_000)]
)
def test_rows_are_copied_a_few_times_and_few_files_remain(per_run: int, size: int) -> None:
    files: list[compaction.LiveFile] = []
    names = map(str, range(1_000_000))

    def add(size: int) -> None:
        files.append(compaction.LiveFile(next(names), size, rows=1_000))

    copied, written = 0, 0
    for _ in range(500):
        for _ in range(per_run):
            add(size)
        written += per_run * size
        for group in compaction._groups(files):
            for file in group:
                files.remove(file)
            copied += sum(file.size for file in group)
            add(sum(file.size for file in group))
        assert sum(file.size < compaction._LARGE_BYTES for file in files) <= 30
    assert copied < 4 * written
