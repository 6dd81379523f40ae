"""A copy in parts that something happens to ends exact, or stops with the reason and goes on."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from pgque_dagster.client import Client, PgqueError
from pgque_dagster.client.replicas.outcome import Apart
from pgque_dagster.spark.replicas import parts
from pgque_dagster.spark.sinks.files.storage import StorageFailed
from tests.support.replicas.parts import (
    ROWS,
    TABLE,
    copy_in_parts,
    has_failed,
    run,
    status,
    until_copied,
)
from tests.support.replicas.replication import DeltaReplication, LakeReplication
from tests.support.runner.calls import at_call
from tests.support.servers.logins import as_login
from tests.support.servers.machines import needs_a_small_disk, small_disk
from tests.support.servers.standbys import replicas

PARTITIONS = """
create table t (id int primary key, v text) partition by range (id);
create table p1 partition of t for values from (0) to (100);
create table p2 partition of t for values from (100) to (200);
create table p3 (like t including all);
insert into t select n, repeat('x', 900) from generate_series(1, 199) n;
insert into p3 select n from generate_series(200, 299) n;
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lake", "is_late"), [("delta", False), ("iceberg", True)], indirect=["lake"]
)
def test_rows_that_another_program_writes_meanwhile_stay_until_a_repair(
    table: LakeReplication, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    until_copied(table)
    table.repair()

    def write() -> None:
        table.repeat_rows("public.t", as_ours=False)

    with monkeypatch.context() as patch:
        if is_late:
            at_call(patch, parts.CopyInParts, "rows", write)
        else:
            run(table)
            write()
        has_failed(table)
    table.end_pauses()
    assert "another program has written to the replica of public.t" in has_failed(table)
    assert len(table.replica("public.t")) == 2 * ROWS
    table.repair()
    run(table)
    if not is_late:  # Delta's maintenance does not count as another program.
        table.sink("public.t").maintain(table.spark, table.url)
    until_copied(table)
    table.check()


@pytest.mark.parametrize("lake", ["delta"], indirect=True)
@pytest.mark.parametrize("is_first", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_parts_whose_file_vanishes_are_read_again(
    table: LakeReplication, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    if not is_first:
        until_copied(table)
        table.repair()
    copy_in_parts(monkeypatch, width=3, seconds=60)
    inner, read_parts = parts.CopyInParts.rows, parts.CopyInParts._read_parts

    def losing(copy: parts.CopyInParts) -> tuple[int, str, DataFrame]:
        found = inner(copy)
        Path(copy._kept.storage.location, copy._kept.files[0].path).unlink()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(parts.CopyInParts, "rows", losing)
        # Spark would leave out the rows.
        table.spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
        try:
            with pytest.raises(StorageFailed, match="1 files of the copy in parts are gone"):
                run(table)
        finally:
            table.spark.conf.unset("spark.sql.files.ignoreMissingFiles")
    read: list[int] = []
    monkeypatch.setattr(
        parts.CopyInParts,
        "_read_parts",
        lambda copy, numbers: (read.extend(numbers), read_parts(copy, numbers))[1],
    )
    table.end_leases()
    until_copied(table)
    assert read == [0, 1, 2]
    table.check()


@pytest.mark.slow
@pytest.mark.parametrize("lake", ["delta"], indirect=True)
def test_a_copy_whose_ack_fails_reads_no_part_again(
    table: LakeReplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise ArithmeticError

    copy_in_parts(monkeypatch, width=3, seconds=60)
    table.tick()
    with Client(table.url) as client:
        batch = table.claim(client)
        table.replicate(batch, table.tables)
        batch.claim.before_ack(failing)
        with pytest.raises(ArithmeticError):
            batch.claim.ack()
        batch.claim.release()
    table.check()
    monkeypatch.setattr(parts.CopyInParts, "_read_parts", failing)
    table.sql("update t set n = -1")
    until_copied(table)
    table.check()


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        "alter table t attach partition p3 for values from (200) to (300)",
        "alter table t detach partition p2; select pgque.uncapture('p2', 'changes')",
        "drop table p2",
        "alter table p2 rename to other",
    ],
)
def test_partitions_that_come_and_go_meanwhile(
    lake: LakeReplication, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    copy_in_parts(monkeypatch)
    lake.sql(PARTITIONS)
    lake.capture("public.t")
    run(lake)
    run(lake)
    lake.sql("delete from t where id = 140; update t set id = 140 where id = 90")
    for statement in change.split("; "):
        lake.sql(statement)
    until_copied(lake, 100)
    lake.check()


@pytest.mark.slow
@pytest.mark.parametrize("lake", ["delta"], indirect=True)
def test_a_copy_goes_on_once_its_role_may_read_the_table_again(
    table: LakeReplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_in_parts(monkeypatch, width=2)
    owner = table.url
    login = as_login(owner, "pgque_reader", "pgque_writer")
    table.capture("public.other")
    table.sql("grant select on t, other to login_reader_writer")
    for number, change in enumerate(("grant select on t to", "revoke select on t from") * 2):
        table.sql(f"{change} login_reader_writer")
        table.end_pauses()
        table.sql(f"insert into other values ({number + 2})")
        table.tick()
        table.url = login
        found = [each for each in table.run() if isinstance(each, Apart)]
        table.url = owner
        assert ["grant select on public.t" in each.reason for each in found] == [number % 2 == 1]
    table.end_pauses()
    until_copied(table)
    table.check()


@pytest.mark.slow
@needs_a_small_disk
@pytest.mark.parametrize("lake", ["delta"], indirect=True)
def test_a_copy_goes_on_once_the_disk_has_room(table: LakeReplication) -> None:
    with small_disk(table.folder) as disk:
        run(table)
        disk.fill()
        with pytest.raises(StorageFailed, match="No space left"):
            table.catch_up()
        table.end_leases()
        disk.empty()
        before = status(table).copying
        run(table)
        assert before is not None
        assert status(table).copying != before
        until_copied(table)
        table.check()


@pytest.mark.slow
def test_a_copy_goes_on_after_its_server_crashed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_in_parts(monkeypatch)
    with replicas() as servers:
        server = servers.primary()
        lake = DeltaReplication(server.url, spark, tmp_path / "lake")
        lake.sql(TABLE)
        lake.sql("select pgque.create_queue('changes')")
        lake.sql("select pgque.register_consumer('changes', 'lake')")
        lake.capture("public.t")
        run(lake)
        done = status(lake).copying
        inner = parts.rows_at

        def crashing(*arguments: Any) -> DataFrame:
            found = inner(*arguments)
            server.crash()
            return found

        lake.tick()
        with monkeypatch.context() as patch:
            patch.setattr(parts, "rows_at", crashing)
            with pytest.raises(PgqueError):
                lake.run()
        lake.sql("update t set id = id + 1000 where id % 3 = 0")
        assert status(lake).copying == done
        lake.end_leases()
        until_copied(lake)
        lake.check()
