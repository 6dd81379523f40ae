"""US-3: what fails comes again by itself, and in the end becomes a dead letter."""

import pytest

from tests.acceptance.conftest import Hire
from tests.support.stories import Message, Operator, Producer, Worker


@pytest.fixture
def worker(operator: Operator, producer: Producer, hire: Hire) -> Worker:
    """Has one job waiting, which may be tried again twice."""
    operator.creates_queue("jobs", max_retries="2")
    worker = hire("jobs", "worker")
    worker.subscribes()
    producer.sends("jobs", '{"job": "flaky"}')
    operator.ticks("jobs")
    return worker


def fail(worker: Worker, operator: Operator) -> Message:
    """The worker tries the job in vain, and the queue goes on; returns the message."""
    (message,) = worker.receives()
    worker.nacks(message, "upstream timeout")
    worker.acks(message)
    operator.maintains()
    operator.ticks("jobs")
    return message


def test_a_job_that_fails_is_retried_until_it_becomes_a_dead_letter(
    operator: Operator, producer: Producer, worker: Worker
) -> None:
    # Given a job that fails at every attempt,
    attempts = [fail(worker, operator) for _ in range(3)]

    # then it is the same job, and its retries are counted.
    assert {message.payload for message in attempts} == {'{"job": "flaky"}'}
    assert [message.retry_count or 0 for message in attempts] == [0, 1, 2]

    # After the last one it is a dead letter and comes no more.
    assert worker.receives() == []
    (letter,) = worker.asks(
        "select dl_id, ev_data, dl_reason, ev_retry from pgque.dlq_inspect('jobs')"
    )
    assert letter[1:] == ('{"job": "flaky"}', "upstream timeout", 2)

    # When it is replayed, it comes again with its retries counted anew,
    producer.asks("select pgque.dlq_replay(%s)", letter[0])
    operator.ticks("jobs")
    (replayed,) = worker.receives()
    assert (replayed.payload, replayed.retry_count or 0) == ('{"job": "flaky"}', 0)

    # and once it succeeds nothing is left.
    worker.acks(replayed)
    assert worker.receives() == []
    assert worker.asks("select * from pgque.dlq_inspect('jobs')") == []


def test_a_transient_failure_needs_nobodys_help(operator: Operator, worker: Worker) -> None:
    fail(worker, operator)
    assert worker.works_off() == ['{"job": "flaky"}']
    assert worker.asks("select * from pgque.dlq_inspect('jobs')") == []
