"""Fixtures of the tests of sinks."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.parquet_tables import OPTIONS
from tests.support.s3 import S3, s3_server


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """An S3 server with a bucket, for the whole session."""
    with s3_server() as server:
        yield server


@pytest.fixture(params=["directory", "s3"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A directory, and one in an object store."""
    if request.param == "directory":
        return str(tmp_path / "with space")
    s3: S3 = request.getfixturevalue("s3")
    OPTIONS.update(s3.options)
    return s3.url(f"{uuid.uuid4().hex}/with space")
