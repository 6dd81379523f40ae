"""The example of docs/postgremq.md in Python runs as it is written."""

import pytest

from tests.client.examples import blocks
from tests.support.queues import connect


def test_the_example_in_python_consumes_and_acks(
    database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = blocks("postgremq.md")
    exec(example, {"url": database_url})
    assert capsys.readouterr().out == "2\n"
    with connect(database_url) as db:
        found = "select pending_count, processing_count, completed_count"
        assert db.rows(f"{found} from postgremq.get_queue_statistics('audit')") == [(0, 0, 1)]
