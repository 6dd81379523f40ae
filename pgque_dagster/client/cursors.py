"""Cursors that read and write the same values, independent of the connection's settings.

Results are fetched in binary format, which DateStyle and IntervalStyle do not change.
"""

import json
from typing import Any

import psycopg
from psycopg.adapt import AdaptersMap
from psycopg.postgres import register_default_adapters, types
from psycopg.types.array import register_all_arrays
from psycopg.types.json import set_json_loads

# Not psycopg's own map or the connection's, in which a program may register adapters.
_ADAPTERS = AdaptersMap(types=types)
register_default_adapters(_ADAPTERS)
register_all_arrays(_ADAPTERS)
set_json_loads(json.loads, _ADAPTERS)


class Cursor(psycopg.Cursor[tuple[Any, ...]]):
    """A cursor with psycopg's default adapters."""

    adapters = _ADAPTERS


class AsyncCursor(psycopg.AsyncCursor[tuple[Any, ...]]):
    """A cursor with psycopg's default adapters."""

    adapters = _ADAPTERS
