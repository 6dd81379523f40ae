"""Fixtures of the tests of sinks."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.s3 import S3, s3_server
from tests.support.stored_tables import TABLES


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """An S3 server with a bucket, for the whole session."""
    with s3_server() as server:
        yield server


@pytest.fixture
def location(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> str:
    """The place of a table of the kind that is the test's parameter."""
    if not TABLES[kind].is_on_s3:
        return str(tmp_path / "table")
    found: S3 = request.getfixturevalue("s3")
    for name, option in found.options.items():
        monkeypatch.setenv(name.upper(), option)
    return found.url(uuid.uuid4().hex)
