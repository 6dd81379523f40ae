"""The stream's reader, called in the order in which Spark calls it, older versions too."""

import sys
from collections.abc import Iterator
from datetime import timedelta

import pytest

from pgque_dagster.client import BatchLeased, Client, ConsumerNotFound, InvalidArgument
from pgque_dagster.client.ticks import claim_ticks
from pgque_dagster.spark.data_source import stream_reader
from pgque_dagster.spark.streaming.reader import CheckpointMismatch, PgqueStreamReader
from tests.support.queues.events import publish, tick
from tests.support.queues.sql import connect, rotate, stored_payloads, value


@pytest.fixture
def reader(client: Client) -> Iterator[PgqueStreamReader]:
    """The reader for Spark before 4.2."""
    reader = PgqueStreamReader(options(client))
    yield reader
    reader.stop()


def options(client: Client, **more: str) -> dict[str, str]:
    needed = {"url": client.url, "queue": "orders", "consumer": "revenue"}
    return needed | more


def read(reader: PgqueStreamReader, start: dict, end: dict) -> list[str]:
    return [
        text
        for partition in reader.partitions(start, end)
        for batch in reader.read(partition)
        for text in batch.column("ev_data").to_pylist()
    ]


def stored(client: Client, reader: PgqueStreamReader) -> tuple[dict, dict]:
    """Reads a micro-batch of one event, which Spark does not commit. Returns its offsets."""
    start = reader.initialOffset()
    publish(client, ["a"])
    end = reader.latestOffset()
    read(reader, start, end)
    return start, end


def position(client: Client) -> int:
    with client.transaction() as db:
        return int(value(db, "select last_tick from pgque.get_consumer_info('orders', 'revenue')"))


def test_the_next_micro_batch_finishes_one_that_spark_did_not_commit(
    client: Client, reader: PgqueStreamReader
) -> None:
    start, end = stored(client, reader)
    publish(client, ["b"])
    restarted = PgqueStreamReader(options(client))
    reader.stop()
    newest = restarted.latestOffset()

    assert position(client) == start["tick"]
    assert read(restarted, end, newest) == ["b"]
    assert position(client) == end["tick"]
    restarted.stop()


def test_a_micro_batch_that_is_planned_again_has_the_same_events(
    client: Client, reader: PgqueStreamReader
) -> None:
    start, end = stored(client, reader)

    assert reader.latestOffset() == end  # without news
    assert read(reader, end, end) == []
    reader.stop()
    publish(client, ["b"])
    assert read(reader, start, end) == ["a"]


def test_rotation_waits_for_what_is_not_stored(client: Client, reader: PgqueStreamReader) -> None:
    _, end = stored(client, reader)
    with connect(client.url) as db:
        for is_stored in (False, True):
            if is_stored:
                reader.commit(end)
                tick(client)
                read(reader, end, reader.latestOffset())
                reader.commit(reader.latestOffset())
            for _ in range(4):
                rotate(db, "orders")
            assert stored_payloads(db, "orders") == (set() if is_stored else {"a"})


def test_the_checkpoint_of_another_consumer_or_registration_is_refused(
    client: Client, reader: PgqueStreamReader
) -> None:
    start = reader.initialOffset()
    publish(client, ["a"])
    end = reader.latestOffset()
    reader.commit(end)
    reader.stop()
    client.register_consumer("orders", "audit")
    audit, nobody = (
        PgqueStreamReader(options(client, consumer=name)) for name in ("audit", "nobody")
    )

    with pytest.raises(CheckpointMismatch, match="to consumer revenue on queue orders") as told:
        audit.partitions(start, end)
    assert "not to consumer audit on queue orders" in str(told.value)
    with pytest.raises(ConsumerNotFound, match='consumer "nobody" is not registered on queue'):
        nobody.initialOffset()
    client.unregister_consumer("orders", "revenue", skip=True)
    client.register_consumer("orders", "revenue")
    anew = PgqueStreamReader(options(client))
    with pytest.raises(CheckpointMismatch, match="revenue on queue orders was registered again"):
        anew.partitions(start, end)
    for each in (audit, nobody, anew):
        each.stop()


def test_asking_for_nothing_finishes_nothing(client: Client, reader: PgqueStreamReader) -> None:
    start, end = stored(client, reader)
    reader.stop()

    assert reader.partitions(end, end) == []
    assert position(client) == start["tick"]
    assert read(reader, reader.initialOffset(), end) == ["a"]


def test_the_first_micro_batch_is_refused_when_somebody_read_past_it(
    client: Client, reader: PgqueStreamReader
) -> None:
    reader.initialOffset()
    publish(client, ["a"])
    end = reader.latestOffset()
    reader.stop()
    for _ in range(2):
        tick(client)
        batch = client.next_batch("orders", "revenue")
        assert batch is not None
        client.finish_batch(batch)
    tick(client)

    with pytest.raises(CheckpointMismatch, match="past the end of the checkpoint's"):
        reader.partitions(reader.initialOffset(), end)


def test_the_checkpoint_of_another_source_is_refused(reader: PgqueStreamReader) -> None:
    with pytest.raises(CheckpointMismatch, match=r"holds no tick, but .'partition-1'"):
        reader.commit({"partition-1": 3})


def test_a_lease_is_waited_for_unless_it_is_longer_than_the_querys_own(client: Client) -> None:
    client.run(claim_ticks("orders", "revenue", "a dead query", timedelta(seconds=0.5)))
    reader = PgqueStreamReader(options(client, lease_seconds="20"))
    reader.initialOffset()
    reader.stop()

    client.run(claim_ticks("orders", "revenue", "a worker", timedelta(hours=1)))
    late = PgqueStreamReader(options(client, lease_seconds="1"))
    with pytest.raises(BatchLeased, match=r'consumer revenue of queue orders is read.*"a worker"'):
        late.initialOffset()
    late.stop()


def test_a_reader_that_is_stopped_leaves_a_started_batch_open(
    client: Client, reader: PgqueStreamReader
) -> None:
    start, _ = stored(client, reader)
    reader.stop()

    lease = client.lease_info("orders", "revenue")
    assert lease is not None and lease.owner is None
    assert position(client) == start["tick"]


def test_an_old_spark_cannot_limit_micro_batches(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "pgque_dagster.spark.streaming.limited_reader", raising=False)
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)

    with pytest.raises(InvalidArgument, match=r"cannot limit micro-batches to 10 events.*4\.2"):
        stream_reader(options(client, max_events="10")).initialOffset()
    assert type(stream_reader(options(client))) is PgqueStreamReader
