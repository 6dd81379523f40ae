"""Options that make no sense are refused when the consumer is made; a consumer can run again."""

from datetime import timedelta
from typing import Any

import pytest

from pgque_dagster.client import Client, Consumer, Delivery, InvalidArgument, RateLimit
from tests.client.consumer.support import run_until, send
from tests.support.queues import Connection


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "word"),
        [
            ({"concurrency": 0}, "1 or more"),
            ({"queue": []}, "Name one"),
            ({"slots": 2, "subconsumer": "x"}, "Leave out slots"),
            ({"on_failure": "pause"}, "Pass slots"),
            ({"retry_after": 60}, "retry_after=60"),
            ({"retry_after": timedelta(seconds=-1)}, "retry_after"),
            ({"lease": 60}, "lease=60"),
            ({"lease": timedelta(0)}, "lease"),
            ({"poll_interval": 5}, "poll_interval=5"),
            ({"poll_interval": timedelta(0)}, "poll_interval"),
            ({"max_batch_time": 60}, "max_batch_time=60"),
            ({"max_batch_time": timedelta(0)}, "max_batch_time"),
            ({"concurrency": "2"}, "concurrency"),
        ],
    )
    def test_options_that_make_no_sense_are_refused(
        self, options: dict[str, Any], word: str
    ) -> None:
        with pytest.raises(InvalidArgument, match=word):
            Consumer(**{"url": "", "queue": "q", "name": "c", **options})

    @pytest.mark.parametrize(
        "wrong", [{"count": 0}, {"count": "10"}, {"count": 1, "per": 60}], ids=str
    )
    def test_rate_limits_that_make_no_sense_are_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(InvalidArgument, match=r"rate limit|per="):
            RateLimit(**wrong)


class TestRunningAgain:
    def test_a_consumer_that_was_stopped_can_run_again(
        self, client: Client, db: Connection
    ) -> None:
        consumer = Consumer(client.url, "q", "c")
        handled: list[Delivery] = []
        consumer.on()(handled.append)
        for times in (1, 2):
            send(client, db, "1")
            run_until(consumer, lambda times=times: len(handled) == times)  # type: ignore[misc]
