"""The code location of the live tests whose steps run in pods of their own."""

import dagster as dg

from tests.support.live_project import shop
from tests.support.remote_steps import pod_executor

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
