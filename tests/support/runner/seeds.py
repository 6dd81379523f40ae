"""The seeds of tests that choose faults; `make torture` sets others."""

import os

_FIRST, _, _LAST = os.environ.get("PGQUE_SEEDS", "0-9").partition("-")
SEEDS = range(int(_FIRST), int(_LAST) + 1)
