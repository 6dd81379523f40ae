"""Fixtures of the tests of sinks."""

from collections.abc import Iterator

import pytest

from tests.support.s3 import S3, s3_server


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """An S3 server with a bucket, for the whole session."""
    with s3_server() as server:
        yield server
