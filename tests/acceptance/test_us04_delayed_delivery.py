"""US-4: a message is scheduled for later, as reminders are."""

import time

import pytest

from tests.acceptance.conftest import Hire
from tests.support.queues import PATIENCE_SECONDS
from tests.support.stories import Message, Operator, Producer, Worker

REMIND = "select pgque.send_at('reminders', 'remind', %s::jsonb, now() + %s::interval)"


@pytest.fixture
def sender(operator: Operator, hire: Hire) -> Worker:
    """Consumes the queue of reminders."""
    operator.creates_queue("reminders")
    sender = hire("reminders", "sender")
    sender.subscribes()
    return sender


def look(operator: Operator, sender: Worker) -> list[Message]:
    """What the sender gets once maintenance and ticker have run."""
    operator.maintains()
    operator.ticks("reminders")
    return sender.receives()


def test_a_reminder_comes_when_it_is_due_and_not_before(
    operator: Operator, producer: Producer, sender: Worker
) -> None:
    # Given a reminder for tomorrow and one that is due in a moment,
    producer.asks(REMIND, '{"call": "Ada"}', "1 day")
    producer.asks(REMIND, '{"call": "Bob"}', "4 seconds")

    # when the sender looks at once, there is nothing.
    assert look(operator, sender) == []

    # When the moment has passed,
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (messages := look(operator, sender)):
        assert time.monotonic() < deadline, "the reminder never came"
        time.sleep(0.1)

    # then the one reminder is there, not earlier than it was due.
    (message,) = messages
    assert (message.type, message.payload) == ("remind", '{"call": "Bob"}')
    assert message.created_at <= operator.asks_one("select clock_timestamp()")
    sender.acks(message)
    assert look(operator, sender) == []


def test_a_reminder_for_a_time_gone_by_comes_at_once(
    operator: Operator, producer: Producer, sender: Worker
) -> None:
    producer.asks(REMIND, '{"call": "Eve"}', "-1 hour")
    operator.ticks("reminders")
    assert sender.works_off() == ['{"call": "Eve"}']
