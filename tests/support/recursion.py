"""A higher limit of recursion, for the standard library's JSON."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def deep_recursion(limit: int = 20_000) -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(limit)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
