"""US-7: the application's own writes and the ack are one transaction, so a crash undoes both."""

import pytest

from tests.acceptance.conftest import Hire
from tests.support.queues import connect
from tests.support.stories import Message, Operator, Producer, Worker


@pytest.fixture
def payments(operator: Operator, database_url: str) -> str:
    """A queue, and the table in which the application books what it processed."""
    with connect(database_url) as owner:
        owner.execute("create table processed_payments (id int primary key)")
        owner.execute("grant select, insert on processed_payments to pgque_reader")
    operator.creates_queue("payments")
    return "payments"


def process(processor: Worker) -> Message:
    """Books the one payment that is there, and acks it, in the open transaction."""
    (message,) = processor.receives()
    processor.db.execute(
        "insert into processed_payments select (%s::jsonb ->> 'payment_id')::int",
        [message.payload],
    )
    processor.acks(message)
    return message


def booked(processor: Worker) -> list[int]:
    return [number for (number,) in processor.asks("select id from processed_payments order by 1")]


def test_a_payment_is_booked_once_though_its_processor_crashes(
    payments: str, operator: Operator, producer: Producer, hire: Hire
) -> None:
    processor = hire(payments, "processor")
    processor.subscribes()

    # When a payment is processed and acked in one transaction,
    producer.sends(payments, '{"payment_id": 42}')
    operator.ticks(payments)
    with processor.db.transaction():
        process(processor)

    # then it is booked and the queue is done with it.
    assert booked(processor) == [42]
    assert processor.receives() == []

    # When the processor of the next payment dies before it commits,
    producer.sends(payments, '{"payment_id": 43}')
    operator.ticks(payments)
    processor.db.execute("begin")
    lost = process(processor)
    processor.db.close()

    # then neither booking nor ack has happened, and the payment comes to its successor,
    successor = hire(payments, "processor")
    assert booked(successor) == [42]
    with successor.db.transaction():
        again = process(successor)
    assert (again.msg_id, again.payload) == (lost.msg_id, '{"payment_id": 43}')

    # who booked it once.
    assert booked(successor) == [42, 43]
    assert successor.receives() == []
