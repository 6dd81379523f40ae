"""The step that publishes a batch succeeds only on the state that was read before."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgque_dagster.client import Client
from pgque_dagster.spark import ParquetSink, SparkBatch
from pgque_dagster.spark.sinks.files.folders import FolderOutput, FolderState
from pgque_dagster.spark.sinks.files.storage import StorageFailed
from pgque_dagster.spark.sinks.publication import WriteAttempt, publish
from tests.support.queues.events import claim
from tests.support.queues.events import publish as send


def aside(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.aside")


def written(folder: Path, epoch: int, attempt: str) -> FolderOutput:
    """An attempt that has written one file."""
    output = FolderOutput(folder, aside(folder), WriteAttempt(epoch, attempt))
    folder.mkdir(exist_ok=True)
    output.begin()
    rows = output.writing / output.name
    rows.mkdir()
    (rows / "part-0.parquet").write_text(attempt)
    return output


def visible(folder: Path) -> list[str]:
    """What stands in the files that readers see."""
    return [file.read_text() for file in folder.glob("**/*.parquet")]


def test_of_two_attempts_that_read_the_same_state_one_publishes(tmp_path: Path) -> None:
    first, second = written(tmp_path, 1, "a"), written(tmp_path, 2, "b")
    state = first.read()

    assert second.replace(second.read())
    assert not first.replace(state)
    assert visible(tmp_path) == ["b"]


def test_a_number_whose_rows_were_replaced_and_swept_is_not_given_out_again(
    client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    send(client, ["a"])
    first = claim(client)
    folder = tmp_path / f"batch-{first.batch_id}"
    state = FolderOutput(folder, aside(folder), WriteAttempt(1, "a")).read()
    for count in (2, 3):
        later = SparkBatch(spark, claim(client), client.url)
        ParquetSink(tmp_path).write(later, spark.range(count))

    # It was not swept, as if it had been written after the others swept.
    stale = written(folder, first.lease.epoch, "a")
    assert not stale.replace(state)
    assert spark.read.option("recursiveFileLookup", "true").parquet(str(tmp_path)).count() == 3


def test_a_stale_attempt_that_removed_what_it_read_does_not_publish_over_a_later_one(
    tmp_path: Path,
) -> None:
    first, stale, later = (written(tmp_path, n, name) for n, name in enumerate("abc", 1))
    assert first.replace(first.read())
    state = stale.read()
    assert later.replace(later.read())

    assert not stale.replace(state)
    assert visible(tmp_path) == ["c"]
    assert later.read() == FolderState(2, WriteAttempt(3, "c"))


def test_a_publication_that_an_attempt_removed_before_it_died_is_read_as_none(
    tmp_path: Path,
) -> None:
    first, second = written(tmp_path, 1, "a"), written(tmp_path, 2, "b")
    assert first.replace(first.read())
    # As it is left between the two renames.
    rows = tmp_path / "publication-1" / first.name
    rows.rename(aside(tmp_path) / ".trash-1")

    assert second.read() == FolderState(1, None)
    assert second.replace(second.read())
    assert visible(tmp_path) == ["b"]


def test_files_that_were_swept_are_not_published_although_spark_made_the_directory_again(
    tmp_path: Path,
) -> None:
    output = written(tmp_path, 1, "a")
    shutil.rmtree(output.writing)
    (output.writing / output.name).mkdir(parents=True)

    with pytest.raises(StorageFailed, match="was removed before it was published"):
        output.replace(output.read())

    assert output.read() == FolderState(0, None)


def test_what_a_stale_attempt_published_before_the_next_one_is_replaced(
    client: Client, tmp_path: Path
) -> None:
    send(client, ["a"])
    stale = written(tmp_path, claim(client).lease.epoch, "a")
    later = claim(client)
    output = written(tmp_path, later.lease.epoch, "b")
    read, overtaking = output.read, [lambda: stale.replace(stale.read())]

    def reading() -> FolderState:
        """The stale attempt publishes when the later one has read the state."""
        state = read()
        while overtaking:
            overtaking.pop()()
        return state

    output.read = reading  # type: ignore[method-assign]
    publish(later, output)

    assert visible(tmp_path) == ["b"]
    assert output.number == 2


def test_an_answer_that_was_lost_is_found_in_the_state(client: Client, tmp_path: Path) -> None:
    send(client, ["a"])
    claimed = claim(client)
    output = written(tmp_path, claimed.lease.epoch, "a")
    replace = output.replace

    def replacing(state: FolderState) -> bool:
        replace(state)
        return False

    output.replace = replacing  # type: ignore[method-assign]
    publish(claimed, output)

    assert visible(tmp_path) == ["a"]
    assert output.number == 1
