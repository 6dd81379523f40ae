"""What the workers of the plays in message_chaos.py and serial_chaos.py do, as processes.

python -m PLAY ROLE URL SINK_URL SEED
"""

import time
from collections.abc import Callable, Mapping
from random import Random

import psycopg

from tests.support.queues import Connection, connect

Work = Callable[[Connection, str, Random], None]


def work(roles: Mapping[str, Work], role: str, url: str, sink: str, seed: str) -> None:
    """Works until `stop` holds a row. Ends at an error that no lost connection explains."""
    random = Random(int(seed))
    while True:
        try:
            with connect(f"{url}&application_name=chaos-{role}") as db:
                while not db.value("select count(*) from stop"):
                    roles[role](db, sink, random)
                return
        except psycopg.Error as error:
            state = error.sqlstate
            if state is not None and not state.startswith(("08", "57")):
                raise
        time.sleep(0.05)
