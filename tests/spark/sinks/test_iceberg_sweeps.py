"""A sweep of an Iceberg table's folder: what dead attempts left goes, and nothing else."""

import os
import uuid
from datetime import timedelta
from pathlib import Path

import pytest

from pgque_dagster.client import Batch, InvalidArgument
from tests.support.queues.events import claim, publish
from tests.support.spark.attempts import once_before_the_swap
from tests.support.spark.lakes import OLD_SECONDS, IcebergLake, age


def ended(lake: IcebergLake, how: str) -> Batch:
    """An attempt that ended in one of these ways, or goes on."""
    publish(lake.client, [{"number": 2}])
    ttl = timedelta(milliseconds=1 if how == "out of its lease" else 600_000)
    claimed = lake.client.claim("orders", "revenue", owner="a test", ttl=ttl)
    assert claimed is not None
    if how == "acked":
        claimed.ack()
    elif how == "taken over":
        claim(lake.client)
    elif how == "released":
        claimed.release()
    elif how == "unregistered":
        lake.client.unregister_consumer("orders", "revenue", skip=True)
    return claimed


def leave(lake: IcebergLake, claimed: Batch, seconds: float = OLD_SECONDS) -> Path:
    """A file that an attempt wrote some time ago, and did not publish."""
    attempt = f"{claimed.batch_id}-{claimed.lease.epoch}-{uuid.uuid4().hex}"
    (table,) = (lake.folder / "sales").iterdir()
    path = table / "data" / attempt / f"part-{uuid.uuid4().hex}.parquet"
    path.parent.mkdir()
    path.touch()
    age(path.parent, seconds)
    return path


def relative(path: Path) -> str:
    return "/".join(path.parts[-3:])


@pytest.mark.parametrize("how", ["acked", "taken over", "released", "unregistered"])
def test_old_files_of_attempts_that_ended_are_swept(lake: IcebergLake, how: str) -> None:
    lake.store(1)
    left = leave(lake, ended(lake, how))

    assert lake.maintain() == [relative(left)]

    assert not left.exists()
    assert lake.numbers() == [1]


# Out of its lease, an attempt may still renew it, because nobody took the batch over.
@pytest.mark.parametrize("how", ["leased", "out of its lease"])
def test_files_of_an_attempt_that_may_still_publish_are_kept(lake: IcebergLake, how: str) -> None:
    lake.store(1)
    left = leave(lake, ended(lake, how))

    assert lake.maintain() == []

    assert left.exists()


def test_young_files_and_those_of_others_are_kept(lake: IcebergLake) -> None:
    lake.store(1)
    young = leave(lake, ended(lake, "acked"), seconds=6 * 86400)
    foreign = young.with_name("by-hand.parquet")
    foreign.touch()
    os.utime(foreign, (0, 0))

    assert lake.maintain() == []
    older = timedelta(days=5)
    assert lake.maintain(retention=older) == [relative(young)]

    assert foreign.exists()


def test_files_of_snapshots_that_the_table_still_has_are_kept(lake: IcebergLake) -> None:
    lake.store(1)
    first = lake.batch(2, 3)
    before = lake.write(first).version
    second = lake.again(first)
    lake.write(second, where="number = 3")
    second.claim.ack()
    age(lake.folder)

    assert lake.maintain() == []
    then = lake.table().scan(snapshot_id=before).to_arrow()
    assert sorted(then["number"].to_pylist()) == [1, 2, 3]

    lake.table().maintenance.expire_snapshots().by_id(before).commit()
    kept = lake.table().snapshots()
    swept = lake.maintain()

    assert {path.split("/")[1].split("-")[1] for path in swept} == {str(first.claim.lease.epoch)}
    assert lake.numbers() == [1, 3]
    assert lake.table().snapshots() == kept


def test_files_that_are_published_while_the_sweep_looks_are_kept(
    lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.store(1)

    def swept() -> None:
        age(lake.folder)
        assert lake.maintain() == []

    once_before_the_swap(monkeypatch, lake.output, swept)
    lake.store(2)

    assert lake.maintain() == []
    assert lake.numbers() == [1, 2]


def test_a_sweep_that_could_remove_what_is_needed_is_refused(lake: IcebergLake) -> None:
    with pytest.raises(InvalidArgument, match=r"there is no Iceberg table sales.revenue"):
        lake.maintain()
    with pytest.raises(InvalidArgument, match="at least a day"):
        lake.maintain(retention=timedelta(hours=1))
    lake.store(1)
    left = leave(lake, ended(lake, "acked"))
    lake.adopt("another")

    with pytest.raises(InvalidArgument, match=r"batches of incarnation another"):
        lake.maintain()

    assert left.exists()
