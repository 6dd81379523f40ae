"""US-1: a developer sends a JSON message and receives it; from installing to uninstalling."""

from contextlib import ExitStack

from tests.conftest import INSTALL_SQL
from tests.support.queues import connect, value
from tests.support.stories import Operator, Producer, Worker, sign_in


def test_a_message_goes_from_a_fresh_installation_to_its_consumer(
    new_database_url: str, stack: ExitStack
) -> None:
    # Given a database with the queue just installed, and a subscriber.
    owner = stack.enter_context(connect(new_database_url))
    owner.execute(INSTALL_SQL.read_bytes())
    operator = Operator(stack.enter_context(sign_in(new_database_url, "story_operator")))
    producer = Producer(stack.enter_context(sign_in(new_database_url, "story_producer")))
    app = Worker(stack.enter_context(sign_in(new_database_url, "story_worker")), "orders", "app")
    operator.creates_queue("orders")
    app.subscribes()

    # When one message is sent,
    producer.sends("orders", '{"id":1}')
    operator.ticks("orders")

    # then it arrives as it was sent,
    (message,) = app.receives(10)
    assert (message.payload, message.type) == ('{"id":1}', "default")

    # and after the ack nothing is left.
    app.acks(message)
    assert app.receives(10) == []

    # When the queue is not needed any more, it goes, and so does the schema.
    operator.asks("select pgque.drop_queue('orders', true)")
    value(owner, "select pgque.uninstall()::text")
    assert value(owner, "select to_regnamespace('pgque')") is None
