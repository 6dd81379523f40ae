"""US-6: event tables rotate in time, but never away from under a consumer that lags."""

import time
from collections.abc import Callable

from tests.acceptance.conftest import Hire
from tests.support.queues import PATIENCE_SECONDS
from tests.support.stories import Operator, Producer, Worker

ROTATION = "select rotation_age {} rotation_period from pgque.queue_stats()"


class Stream:
    """A queue in use: one event after the other, with a consumer that keeps up."""

    def __init__(self, operator: Operator, producer: Producer, fast: Worker) -> None:
        self.operator, self.producer, self.fast = operator, producer, fast
        self.sent: list[str] = []
        self.received: list[str] = []

    def goes_on_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, "it never came to that"
            self.sent.append(str(len(self.sent)))
            self.producer.sends("stream", self.sent[-1])
            self.operator.ticks("stream")
            self.received += self.fast.works_off()
            self.operator.maintains()
            time.sleep(0.05)


def test_a_lagging_consumer_holds_rotation_up_and_loses_nothing(
    operator: Operator, producer: Producer, hire: Hire
) -> None:
    # Given a queue that rotates every half second, and two consumers of which one sleeps,
    operator.creates_queue("stream", rotation_period="500 milliseconds")
    fast, slow = hire("stream", "fast"), hire("stream", "slow")
    fast.subscribes()
    slow.subscribes()
    stream = Stream(operator, producer, fast)

    # when the stream goes on, the operator is warned of the sleeper and not of the other,
    stream.goes_on_until(lambda: lag_status(operator, "slow") == "critical")
    stream.goes_on_until(lambda: lag_status(operator, "fast") == "ok")

    # and rotation waits for the sleeper, while the other receives everything.
    stream.goes_on_until(lambda: operator.asks_one(ROTATION.format("> 3 *")))
    assert stream.received == stream.sent

    # When the sleeper wakes up, everything is still there for it,
    late = slow.works_off()
    assert late == stream.sent

    # and rotation goes on, with both consumers at it.
    stream.goes_on_until(lambda: operator.asks_one(ROTATION.format("<")))
    assert late + slow.works_off() == stream.received == stream.sent


def lag_status(operator: Operator, consumer: str) -> str:
    return operator.health("stream")[f"consumer_lag:{consumer}"]
