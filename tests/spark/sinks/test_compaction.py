"""The files of many batches of a directory of Parquet become few, and each row stays once."""

import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, Signals
from threading import Event, Thread
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from pgque_dagster.client import Client, InvalidArgument
from pgque_dagster.client.window import Window
from pgque_dagster.spark import ParquetSink, SparkBatch
from pgque_dagster.spark.sinks.files import compaction
from pgque_dagster.spark.sinks.files.compaction import check_not_united, published_files
from pgque_dagster.spark.sinks.files.folders import FolderOutput
from pgque_dagster.spark.sinks.files.storage import StorageFailed
from pgque_dagster.spark.sinks.publication import WriteAttempt
from tests.support.attempts import next_batch
from tests.support.compacting_driver import CLOSING, EXCHANGING, GATHERING, POINTS
from tests.support.events import make_queue
from tests.support.signals import go_on, has_ended, signalled, wait_until
from tests.support.windows import send_at_hours

# Each starts a Spark of its own, so only these run each time.
ALWAYS = {(SIGKILL, GATHERING), (SIGSTOP, EXCHANGING)}
Rows = list[tuple[int, int]]


class Table:
    """A directory of Parquet."""

    def __init__(self, client: Client, spark: SparkSession, folder: Path) -> None:
        self.client, self.spark, self.path = client, spark, folder / "table"
        self.sink = ParquetSink(self.path)
        self.expected: Rows = []

    def store(self, *, ack: bool = True) -> SparkBatch:
        """Stores a batch of two files with a row each."""
        batch = next_batch(self.client, self.spark, ["a"])
        self.sink.write(batch, self.spark.range(0, 2, 1, 2))
        self.expected += [(batch.batch_id, number) for number in range(2)]
        if ack:
            batch.claim.ack()
        return batch

    def compact(self) -> int:
        """Returns how many files were replaced."""
        return self.sink.maintain(self.client.url).replaced

    def files(self) -> int:
        return len(list(self.path.rglob("*.parquet")))

    def read(self) -> Rows:
        return sorted((row.batch_id, row.id) for row in self.sink.read(self.spark).collect())

    def seen_by_duckdb(self) -> Rows:
        rows = duckdb.read_parquet(f"{self.path}/**/*.parquet")
        return sorted(rows.project("batch_id, id").fetchall())

    def names(self) -> list[str]:
        """The first words of the names in the directory."""
        return sorted(path.name.partition("-")[0] for path in self.path.iterdir())

    def aside(self) -> list[Path]:
        return list(self.path.with_name(".table.pgque").iterdir())


@pytest.fixture
def table(client: Client, spark: SparkSession, tmp_path: Path) -> Table:
    return Table(client, spark, tmp_path)


def test_finished_batches_become_one_file_and_later_ones_are_added_to_it(table: Table) -> None:
    for _ in range(3):
        table.store()
    assert (table.files(), table.compact(), table.files()) == (6, 6, 1)
    assert (table.compact(), table.files()) == (0, 1)
    for _ in range(2):
        table.store()

    assert (table.files(), table.compact(), table.files()) == (5, 5, 1)

    assert table.read() == table.seen_by_duckdb() == table.expected
    assert table.names() == ["_pgque", "united"]
    assert table.aside() == []
    last = table.expected[-1][0]
    of_last = table.sink.read(table.spark, batches=[last]).collect()
    assert sorted((row.batch_id, row.id) for row in of_last) == [(last, 0), (last, 1)]


def test_a_batch_that_is_open_and_a_window_stay_and_are_replaced_once(table: Table) -> None:
    table.store()
    table.store()
    spark, client = table.spark, table.client
    make_queue(client, "hours")
    send_at_hours(client, [["b"]], "hours")
    hour = datetime(2026, 1, 1, tzinfo=UTC)

    def window(rows: int) -> None:
        claimed = Window(client.session, "hours", hour, hour + timedelta(hours=1))
        table.sink.write(SparkBatch(spark, claimed, client.url), spark.range(rows))

    window(1)
    open_batch = table.store(ack=False)

    assert table.compact() == 4
    assert table.names() == ["_pgque", "batch", "united", "window"]

    open_batch.claim.release()
    again = client.claim("orders", "revenue", owner="a test")
    assert again is not None
    table.sink.write(SparkBatch(spark, again, client.url), spark.range(2))
    window(2)
    again.ack()
    assert table.compact() == 3
    of_window = [row for row in table.read() if row[0] > 10**11]
    assert [number for _, number in of_window] == [0, 1]
    assert table.read() == table.seen_by_duckdb() == sorted(table.expected + of_window)


def test_a_stale_attempt_publishes_nothing_where_a_finished_batch_was_united(table: Table) -> None:
    table.store()
    batch = next_batch(table.client, table.spark, ["a"])
    folder, aside = table.path / f"batch-{batch.batch_id}", table.path.with_name("aside")
    stale = FolderOutput(folder, aside, WriteAttempt(0, "stale"))
    stale.begin()
    table.spark.range(9).write.parquet(str(stale.writing / stale.name))
    state = stale.read()
    table.sink.write(batch, table.spark.range(1))
    batch.claim.ack()
    table.compact()
    # Another stale attempt, which has not looked at its lease yet.
    FolderOutput(folder, aside, WriteAttempt(0, "slower")).begin()

    with suppress(OSError):
        stale.replace(state)

    assert len(table.seen_by_duckdb()) == len(table.expected) + 1


def test_a_batch_whose_rows_were_united_is_not_stored_again(table: Table) -> None:
    table.store()
    batch = table.store()
    table.compact()

    with pytest.raises(InvalidArgument, match=f"batch {batch.batch_id} was finished"):
        check_not_united(table.path, batch.batch_id)
    check_not_united(table.path, batch.batch_id + 1)


def test_a_killed_compaction_forgets_no_batch_that_was_united(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [table.store(), table.store()]
    table.compact()
    batches.append(table.store())

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
        killed.setattr(compaction, "_unite", die)
        table.compact()
    for batch in batches:
        with pytest.raises(InvalidArgument, match=f"batch {batch.batch_id} was finished"):
            check_not_united(table.path, batch.batch_id)


def test_a_reader_that_lists_while_batches_are_united_finds_each_row_once(table: Table) -> None:
    for _ in range(30):
        table.store()
    ended, seen = Event(), set()

    def reading() -> None:
        while not ended.is_set():
            files = published_files(table.path)
            # Those that are gone fail a query, which then lists again.
            with suppress(FileNotFoundError):
                seen.add(sum(pq.read_metadata(table.path / each.path).num_rows for each in files))

    reader = Thread(target=reading)
    reader.start()
    try:
        table.compact()
    finally:
        ended.set()
        reader.join()

    assert seen == {len(table.expected)}


def test_a_reader_lists_again_if_directories_were_moved_or_exchanged(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.store()
    table.store()
    walk, compactions = os.walk, [table.compact]

    def walking(folder: Path) -> Iterator[Any]:
        for place, found in enumerate(walk(folder)):
            yield found
            if place and folder == table.path and compactions:
                compactions.pop()()

    monkeypatch.setattr(os, "walk", walking)

    assert table.read() == table.expected


def test_a_file_system_that_cannot_exchange_directories_is_refused(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.store()
    table.store()
    monkeypatch.setattr(compaction, "_RENAME_EXCHANGE", 1 << 20)

    with pytest.raises(StorageFailed, match="cannot exchange two directories"):
        table.compact()

    assert table.read() == table.seen_by_duckdb() == table.expected
    monkeypatch.undo()
    assert table.compact() == 4
    assert table.read() == table.expected


@pytest.mark.parametrize(
    ("signal", "point"),
    [
        pytest.param(
            signal,
            point,
            marks=[] if (signal, point) in ALWAYS else [pytest.mark.slow],
            id=f"{signal.name} {point}",
        )
        for signal in (SIGKILL, SIGSTOP)
        for point in POINTS
    ],
)
def test_each_row_stays_once_when_a_compaction_gets_a_signal(
    table: Table, tmp_path: Path, signal: Signals, point: str
) -> None:
    for _ in range(3):
        table.store()
    arguments = (table.client.url, str(table.path), signal.name, point)
    with signalled("compacting_driver", *arguments, log=tmp_path / "log") as pid:
        assert table.read() == table.seen_by_duckdb() == table.expected

        table.store()
        table.compact()

        assert table.read() == table.seen_by_duckdb() == table.expected
        go_on(pid, SIGCONT)
        wait_until(lambda: has_ended(pid))

    assert table.read() == table.seen_by_duckdb() == table.expected
    if signal == SIGSTOP and point in (GATHERING, CLOSING, EXCHANGING):
        assert "took over: there is no" in (tmp_path / "log").read_text()
    table.store()
    table.compact()
    assert table.names() == ["_pgque", "united"]
    assert table.aside() == []
    assert table.read() == table.seen_by_duckdb() == table.expected
