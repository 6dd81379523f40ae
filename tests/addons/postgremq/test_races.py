"""Two sessions in one moment: nothing is lost or delivered twice, and maintenance does not wait."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.support.messages import (
    drain,
    make_queue,
    publish,
)
from tests.support.queues import Connection, refused, rows, wait_until_blocked

Another = Callable[[], Connection]


def test_uninstall_counts_messages_whose_publishers_have_not_committed(
    db: Connection, another: Another, background: ThreadPoolExecutor
) -> None:
    make_queue(db)
    publisher, remover = another(), another()
    publisher.execute("begin")
    publish(publisher, 1)
    removal = background.submit(rows, remover, "select postgremq.uninstall()")
    wait_until_blocked(db, remover)
    publisher.execute("commit")
    with refused("PQ020", '"q"'):
        removal.result()
    assert drain(db) == [1]
