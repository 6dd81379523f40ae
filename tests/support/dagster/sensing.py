"""Evaluates sensors without a daemon, and records runs that somebody else executed."""

import json
from collections.abc import Mapping
from typing import Any

import dagster as dg

from pgque_dagster import PgqueResource


def evaluate(
    sensor: dg.SensorDefinition, url: str, instance: dg.DagsterInstance, cursor: str | None = None
) -> list[dg.RunRequest] | str:
    """The runs that the sensor asks for, or why it asks for none."""
    return evaluate_from(sensor, url, instance, cursor)[0]


def evaluate_from(
    sensor: dg.SensorDefinition, url: str, instance: dg.DagsterInstance, cursor: str | None
) -> tuple[list[dg.RunRequest] | str, str | None]:
    """The same from a cursor, with the cursor afterwards."""
    context = dg.build_sensor_context(instance=instance, cursor=cursor)
    result = sensor(context, pgque=PgqueResource(url=url))
    if isinstance(result, dg.SkipReason):
        return str(result.skip_message), context.cursor
    return list(result.run_requests), result.cursor


def the_request(found: list[dg.RunRequest] | str) -> dg.RunRequest:
    """The only run asked for."""
    assert not isinstance(found, str), found
    (request,) = found
    return request


def record_run(
    instance: dg.DagsterInstance,
    asset: dg.AssetsDefinition,
    url: str,
    tags: Mapping[str, str],
    status: dg.DagsterRunStatus,
) -> dg.DagsterRun:
    """A run of the asset as Dagster would have recorded it."""
    job = dg.Definitions(
        assets=[asset], resources={"pgque": PgqueResource(url=url), "pyspark": None}
    ).resolve_implicit_global_asset_job_def()
    return instance.create_run_for_job(
        job, tags=dict(tags), status=status, remote_job_origin=remote_origin(job.name)
    )


def remote_origin(job: str, location_name: str = "shop") -> Any:
    """Where Dagster's webserver would find a job. It queues no run without that."""
    location = {
        "__class__": "GrpcServerRepositoryLocationOrigin",
        **{"host": "localhost", "port": 1, "socket": None, "location_name": location_name},
    }
    repository = {
        "__class__": "ExternalRepositoryOrigin",
        **{"repository_location_origin": location, "repository_name": "__repository__"},
    }
    origin = {"__class__": "ExternalPipelineOrigin", "external_repository_origin": repository}
    return dg.deserialize_value(json.dumps({**origin, "pipeline_name": job}))
