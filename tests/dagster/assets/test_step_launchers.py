"""A step launcher reports a step's events when the step is over, so its steps may not ack."""

import dagster as dg
import pytest

from pgque_dagster import PgqueResource, SparkBatch, pgque_asset
from pgque_dagster.client import Client
from tests.dagster.support import SessionHolder
from tests.support.dagster.remote_steps import ReportingAfterwards
from tests.support.queues.events import publish


def revenue_of(batch: SparkBatch) -> dg.MaterializeResult[None]:
    return dg.MaterializeResult(metadata={"events": batch.event_count})


def shop() -> dg.JobDefinition:
    """The job that the launcher loads by name."""
    revenue = pgque_asset(queue="orders", name="revenue", required_resource_keys={"launcher"})(
        revenue_of
    )
    definitions = dg.Definitions(
        [revenue],
        resources={
            "pgque": PgqueResource(url=dg.EnvVar("PGQUE_URL"), deployment="production"),
            "pyspark": SessionHolder(None),  # type: ignore[arg-type]
            "launcher": dg.ResourceDefinition.hardcoded_resource(ReportingAfterwards()),
        },
        jobs=[dg.define_asset_job("shop", [revenue], executor_def=dg.in_process_executor)],
    )
    return definitions.resolve_job_def("shop")


def test_a_step_whose_events_are_reported_afterwards_claims_nothing(
    client: Client, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGQUE_URL", client.url)
    publish(client, ["a"])

    with dg.execute_job(dg.reconstructable(shop), instance=instance) as run:
        (failure,) = [event for event in run.all_events if event.is_step_failure]

    assert "does not know run" in str(failure.step_failure_data.error)
    assert "step launcher" in str(failure.step_failure_data.error)
    assert client.lease_info("orders", "revenue") is None
    assert client.next_batch("orders", "revenue") is not None
