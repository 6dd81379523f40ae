"""A streaming query whose options cannot be used ends with the reason."""

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from pgque_dagster.client import Client, InvalidArgument
from pgque_dagster.spark.cluster.executor_errors import executor_error
from tests.support.streams import PATIENCE_SECONDS, Sink, Stream


@pytest.mark.parametrize(
    ("options", "trigger", "message"),
    [
        ({"max_events": "0"}, {}, "option max_events of format('pgque') is '0'. It is a whole"),
        ({"lease_seconds": "soon"}, {}, "option lease_seconds of format('pgque') is 'soon'"),
        (
            {"max_event": "5"},
            {},
            "readStream of format('pgque') has no option 'max_event'. Did you mean max_events",
        ),
        ({"consumer": ""}, {"availableNow": True}, "format('pgque') lacks the option consumer"),
    ],
)
def test_a_query_with_an_option_that_cannot_be_used_says_which(
    client: Client,
    spark: SparkSession,
    tmp_path: Path,
    options: dict[str, str],
    trigger: dict[str, bool],
    message: str,
) -> None:
    sink = Sink()
    query = Stream(spark, client.url, tmp_path / "checkpoint", **options).start(sink, **trigger)

    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(PATIENCE_SECONDS)

    assert message in str(caught.value)
    assert "UnboundLocalError" not in str(caught.value)
    cause = executor_error(caught.value)
    assert isinstance(cause, InvalidArgument) and message in str(cause)
    assert sink.attempts == []
