"""Replicas in PostgreSQL that no longer are what the last batch left there."""

import pytest

from pgque_dagster.client import Batch, Client
from pgque_dagster.client.batch import ack_empty
from pgque_dagster.client.errors import TargetOutOfStep
from tests.support.replicas.replication import CONSUMER, QUEUE, PostgresReplication


@pytest.fixture
def copied(postgres: PostgresReplication) -> PostgresReplication:
    """A replica with the row 1."""
    postgres.begin("create table t (id int primary key, v int); insert into t values (1)")
    return postgres


def goes_on(copied: PostgresReplication) -> None:
    """The next batch makes the replica equal to its source again."""
    copied.follow_and_check("insert into t values (9)")


def is_copied_again(copied: PostgresReplication) -> None:
    assert "lost its last batches" in (copied.verify().why_not or "")
    goes_on(copied)
    assert "does not end where the batch begins" in copied.copied[-1]


def claim(client: Client, owner: str) -> Batch:
    return client.claim(QUEUE, CONSUMER, owner=owner)


def pass_quietly(copied: PostgresReplication, times: int = 3) -> None:
    """Finishes batches without events, as the sensor does."""
    with Client(copied.url) as client:
        for _ in range(times):
            copied.tick()
            ack_empty(claim(client, "the sensor"))


def test_a_target_without_its_record_gets_another_copy(copied: PostgresReplication) -> None:
    copied.there("drop table pgque_sink_ledger; delete from t where id = 1")
    goes_on(copied)


@pytest.mark.parametrize("is_quiet", [False, True])
def test_a_target_that_lost_batches_gets_another_copy(
    copied: PostgresReplication, is_quiet: bool
) -> None:
    copied.sql("insert into t values (2)")
    ((tick, fingerprint, batch),) = copied.there(
        "select tick_id, fingerprint, batch_id from pgque_sink_ledger"
    )
    copied.catch_up()
    copied.there(
        f"update pgque_sink_ledger set tick_id = {tick}, fingerprint = '{fingerprint}',"
        f" batch_id = {batch}; delete from t where id = 2"
    )
    if is_quiet:
        pass_quietly(copied)
    is_copied_again(copied)
    pass_quietly(copied)
    assert copied.verify().is_equal


def test_a_batch_that_is_acked_without_a_run_has_the_tables_copied_however_quiet_it_is_then(
    copied: PostgresReplication,
) -> None:
    pass_quietly(copied)
    copied.sql("insert into t values (2)")
    copied.tick()
    with Client(copied.url) as client:
        claim(client, "somebody").ack()
    pass_quietly(copied)
    is_copied_again(copied)


def test_a_run_that_dies_before_its_ack_after_a_quiet_time_copies_nothing(
    copied: PostgresReplication,
) -> None:
    pass_quietly(copied)
    copied.sql("insert into t values (2)")
    copied.tick()
    copied.run(ack=False)
    assert copied.verify().is_equal
    copied.run()
    pass_quietly(copied)
    goes_on(copied)
    assert len(copied.copied) == 1


@pytest.mark.parametrize(
    "script",
    ["drop table t", "alter table t drop column v", "alter table t drop constraint t_pkey"],
)
def test_a_replica_that_somebody_drops_or_alters_is_copied_again(
    copied: PostgresReplication, script: str
) -> None:
    copied.there(script)
    assert "another program changed" in (copied.verify().why_not or "")
    goes_on(copied)
    assert copied.verify().is_equal


def test_another_incarnation_stops_until_somebody_decides(copied: PostgresReplication) -> None:
    with pytest.raises(TargetOutOfStep) as stopped:
        copied.follow("select pgque.renew_incarnation(); insert into t values (2)")
    assert copied.there("select id from t") == [(1,)]
    hint = str(stopped.value.hint)
    copied.there(hint[hint.index("update ") : hint.index(";")])
    copied.follow_and_check()
    assert len(copied.copied) == 2
