"""The code location of the live tests whose steps run in pods of their own."""

import dagster as dg

from tests.support.dagster.remote_steps import pod_executor
from tests.support.live.project import shop

# The instance is in PostgreSQL, since the pods have no files of their host.
SETTINGS = """\
storage:
  postgres:
    postgres_url:
      env: PGQUE_URL
concurrency:
  runs:
    max_concurrent_runs: 4
"""


@dg.definitions
def defs() -> dg.Definitions:
    return shop(pod_executor)
