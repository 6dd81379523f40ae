"""By default, a test that several kinds of tables have in common runs on the cheapest ones."""

import re
from collections import defaultdict
from collections.abc import Iterable
from zlib import crc32

import pytest

_TABLES = re.compile("delta|iceberg|postgres", re.IGNORECASE)


def spare_formats(items: Iterable[pytest.Item]) -> None:
    """Makes tests slow on tables that would show the same.

    A test of replicas that also has a variant for PostgreSQL is slow in the lake, where each step
    costs ten times as much, unless it is marked `in_the_lake`. A test for both formats of the lake
    is slow in one of them, unless it is marked `each_format`. The name of a test decides which one,
    so that each format has half of the tests.
    """
    found: dict[tuple[str, str], dict[str, list[pytest.Function]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            tables = _TABLES.search(item.callspec.id)
            if tables:
                found[str(item.path), item.originalname][tables[0].lower()].append(item)
    for (_, name), variants in found.items():
        for item in _slow(name, variants):
            item.add_marker(pytest.mark.slow)


def _slow(name: str, variants: dict[str, list[pytest.Function]]) -> Iterable[pytest.Function]:
    of_postgres = variants.pop("postgres", [])
    formats = sorted(variants)
    for index, format_ in enumerate(formats):
        for item in variants[format_]:
            if item.get_closest_marker("each_format"):
                continue
            is_spared = len(formats) == 2 and index == crc32(name.encode()) % 2
            is_in_postgres = of_postgres and "replication" in item.fixturenames
            if is_spared or (is_in_postgres and not item.get_closest_marker("in_the_lake")):
                yield item
