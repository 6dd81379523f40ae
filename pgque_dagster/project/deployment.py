"""Identifies the asset that owns a consumer: by its deployment, location and key.

Dagster's run storage has an id, but no public interface for it. The set of dynamic partitions is
public, and all processes of a deployment (daemon, code locations, runs) share it,
on any host or container. So the id of an instance is the only partition of a set.
"""

import os
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from uuid import uuid4

import dagster as dg

from ..client import Client
from ..client.models import ConsumingAsset
from ..client.registrations import note_location
from .consumers import Context, consumers_of_location, repository_of
from .database import Database

_CLOUD_NAME = "DAGSTER_CLOUD_DEPLOYMENT_NAME"
_SET = "pgque/deployment"
# Without DAGSTER_HOME, `dagster dev` starts with a new instance in such a folder each time.
_TEMPORARY = ".tmp_dagster_home_"
# Definitions' repository. A code location of several repositories has no list of all its assets.
_ONLY_REPOSITORY = "__repository__"
_NOTED_SECONDS = 120.0

# When this process records its code location again, by the database's URL.
_noted: dict[str, float] = {}


def deployment_name(instance: dg.DagsterInstance) -> str:
    """Returns the name of a deployment that has no given name.

    It is the deployment's name in Dagster+; the host and folder, if the instance is temporary;
    otherwise the id of the instance, which begins with the host that made it.
    """
    named = os.environ.get(_CLOUD_NAME)
    if named:
        return named
    if instance.is_ephemeral or Path(instance.root_directory).name.startswith(_TEMPORARY):
        return f"{socket.gethostname()}:{Path.cwd()}"
    ids = instance.get_dynamic_partitions(_SET)
    if not ids:
        instance.add_dynamic_partitions(_SET, [f"{socket.gethostname()}-{uuid4().hex[:8]}"])
        # If two processes add one at once, both read the first of them here.
        ids = instance.get_dynamic_partitions(_SET)
    return str(ids[0])


def location_of(context: Context) -> str | None:
    """Returns the name of the code location; None in a schedule, or without one.

    Dagster gives no name to schedules, or to a run in this process, such as `dg.materialize`.
    """
    if isinstance(context, dg.ScheduleEvaluationContext):
        return None
    if isinstance(context, dg.SensorEvaluationContext):
        at = context.code_location_origin
        return at.location_name if at else None
    job = context.run.remote_job_origin
    return job.location_name if job else None


def consuming_asset(
    context: Context, deployment: str | None, keys: Iterable[dg.AssetKey] = ()
) -> ConsumingAsset:
    """Returns the asset that consumes in a context.

    Args:
        context: the context of a step, sensor or schedule.
        deployment: the deployment for which it consumes; None to refuse no deployment.
        keys: the keys of the step's assets.
    """
    return ConsumingAsset(deployment, location_of(context), key_names(keys))


def key_names(keys: Iterable[dg.AssetKey]) -> tuple[str, ...]:
    """Returns the names of assets as consumers record them."""
    return tuple(sorted(key.to_user_string() for key in keys))


def note_consumers(
    context: Context, client: Client, database: Database, deployment: str | None
) -> None:
    """Records in a database which of its consumers the code location has, every two minutes.

    So `pgque.queue_health()` detects consumers of assets that were renamed, moved or deleted.
    """
    location, repository = location_of(context), repository_of(context)
    if location is None or repository is None or repository.name != _ONLY_REPOSITORY:
        return
    if time.monotonic() < _noted.get(client.url, 0.0):
        return
    consumers = [
        (consumer.queue, consumer.name, key)
        for consumer in consumers_of_location(context)
        if consumer.database == database
        for key in key_names(consumer.asset_keys)
    ]
    client.run(note_location(deployment, location, consumers))
    _noted[client.url] = time.monotonic() + _NOTED_SECONDS
