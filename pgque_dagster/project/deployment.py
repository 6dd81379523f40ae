"""Names the deployment of Dagster that consumes, so that a consumer belongs to one of them.

Dagster's run storage has an id, but no public interface gives it. The set of dynamic partitions is
public, and all processes of a deployment (daemon, code locations, runs) share it,
whatever host or container they are in. So the id of an instance is the one partition of a set.
"""

import os
import socket
from pathlib import Path
from uuid import uuid4

import dagster as dg

_CLOUD_NAME = "DAGSTER_CLOUD_DEPLOYMENT_NAME"
_SET = "pgque/deployment"
# `dagster dev` without DAGSTER_HOME begins with a new instance in such a folder each time.
_TEMPORARY = ".tmp_dagster_home_"


def deployment_name(instance: dg.DagsterInstance) -> str:
    """Returns the name of a deployment that was given none.

    It is the deployment's name in Dagster+; or the host and folder, if the instance is a temporary
    one; or else the id of the instance, which begins with the host that made it.
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
