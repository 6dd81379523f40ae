"""By default, a test that both formats of the lake have in common runs on one of them."""

import re
from collections import defaultdict
from collections.abc import Iterable
from zlib import crc32

import pytest

_FORMAT = re.compile("delta|iceberg", re.IGNORECASE)


def spare_a_format(items: Iterable[pytest.Item]) -> None:
    """Makes tests slow in one of the two formats, unless they are marked `each_format`.

    The name of a test decides which one, so that each format has half of the tests.
    """
    found: dict[tuple[str, str], dict[str, list[pytest.Item]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for item in items:
        if not isinstance(item, pytest.Function) or item.get_closest_marker("each_format"):
            continue
        format_ = _FORMAT.search(item.callspec.id) if hasattr(item, "callspec") else None
        if format_:
            found[str(item.path), item.originalname][format_[0].lower()].append(item)
    for (_, name), of_formats in found.items():
        if len(of_formats) == 2:
            for item in of_formats[sorted(of_formats)[crc32(name.encode()) % 2]]:
                item.add_marker(pytest.mark.slow)
