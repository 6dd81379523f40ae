"""What slots of a partitioned consumer refuse."""

import pytest

from tests.support.queues import Connection, make_queue, refused, value
from tests.support.slots import (
    ack,
    claim,
    expire,
    left_over,
    nack,
    publish_and_receive,
    publish_keyed,
    queue_with_slots,
    receive,
    slot_of,
    subscribe,
    texts,
)


class TestWrongUse:
    @pytest.mark.parametrize(
        ("slot", "n"), [(2, 2), (-1, 2), (0, 0), (0, 257), (None, 2), (0, None)]
    )
    def test_impossible_slots_are_refused(
        self, db: Connection, slot: int | None, n: int | None
    ) -> None:
        make_queue(db, consumers=())
        with refused("PQ005", "cannot have a slot", "1 to 256 slots"):
            subscribe(db, slot, n)
        assert left_over(db) == {}

    @pytest.mark.parametrize("consumer", ["", None])
    def test_a_consumer_without_a_name_is_refused(
        self, db: Connection, consumer: str | None
    ) -> None:
        make_queue(db, consumers=())
        with refused("PQ005", "Name the consumer"):
            value(db, "select pgque.subscribe_slot('q', %s, 0, 2)", consumer)

    @pytest.mark.parametrize(
        "call",
        [
            "subscribe_slot('none', 'c', 0, 1)",
            "set_partition_policy('none', 'c', 'skip')",
            "claim_slot('none', 'c', 0, 'w')",
            "release_slot('none', 'c', 0, 'w')",
            "receive_partitioned('none', 'c', 0, 1, 'w')",
            "ack_partitioned('none', 'c', 0, 1, 'w')",
            "nack_partitioned('none', 'c', 0, 1, 'w', null)",
        ],
    )
    def test_an_unknown_queue_is_named(self, db: Connection, call: str) -> None:
        with refused("PQ001", 'queue "none" does not exist'):
            db.execute(f"select pgque.{call}".encode())

    @pytest.mark.parametrize(
        "call",
        [
            "claim_slot('q', 'c', 1, 'w')",
            "release_slot('q', 'c', 1, 'w')",
            "receive_partitioned('q', 'c', 1, 2, 'w')",
            "ack_partitioned('q', 'c', 1, 2, 'w')",
            "nack_partitioned('q', 'c', 1, 2, 'w', null)",
        ],
    )
    def test_a_slot_that_is_only_reserved_cannot_be_used(self, db: Connection, call: str) -> None:
        make_queue(db, consumers=())
        subscribe(db, 0, 2)
        with refused("PQ002", 'slot 1 of consumer "c" is not subscribed', "subscribe_slot"):
            db.execute(f"select pgque.{call}".encode())

    @pytest.mark.parametrize("n", [3, None])
    def test_a_wrong_number_of_slots_is_refused(self, db: Connection, n: int | None) -> None:
        queue_with_slots(db, 2)
        for call in (receive, ack):
            with refused("PQ005", "has 2 slots, not"):
                call(db, 0, n)  # type: ignore[operator]
        with refused("PQ005", "has 2 slots, not"):
            nack(db, 1, 0, n)  # type: ignore[arg-type]

    @pytest.mark.parametrize("ttl", ["0", "-1 second", None, "2 days"])
    def test_an_impossible_lease_is_refused(self, db: Connection, ttl: str | None) -> None:
        queue_with_slots(db, 1)
        with refused("PQ005", "no lease for worker"):
            claim(db, worker="other", ttl=ttl)  # type: ignore[arg-type]

    @pytest.mark.parametrize("worker", ["", None])
    def test_a_worker_without_a_name_is_refused(self, db: Connection, worker: str | None) -> None:
        queue_with_slots(db, 1)
        with refused("PQ005", "Name the worker"):
            claim(db, worker=worker)  # type: ignore[arg-type]

    @pytest.mark.parametrize("most", [0, -1, None])
    def test_an_empty_page_cannot_be_asked_for(self, db: Connection, most: int | None) -> None:
        queue_with_slots(db, 1)
        with refused("PQ005", "no page has"):
            receive(db, 0, 1, most=most)

    @pytest.mark.parametrize("after", ["-1 second", None])
    def test_an_impossible_retry_is_refused(self, db: Connection, after: str | None) -> None:
        queue_with_slots(db, 1)
        ((message, *_),) = publish_and_receive(db)
        with refused("PQ005", "no retry after"):
            nack(db, message, 0, 1, after=after)  # type: ignore[arg-type]

    def test_only_events_of_the_page_can_be_nacked(self, db: Connection) -> None:
        queue_with_slots(db, 2)
        key_of = {slot_of(db, key, 2): key for key in "abcdefgh"}
        foreign, own, later = publish_keyed(
            db, (key_of[1], "x"), (key_of[0], "y"), (key_of[0], "z")
        )
        receive(db, 0, most=1)
        for message in (foreign, later, 999, None):
            with refused("PQ009", "is not in the page that slot 0"):
                nack(db, message)
        assert nack(db, own) == 1
        ack(db)
        with refused("PQ009"):
            nack(db, own)

    @pytest.mark.parametrize("policy", ["wait", "", None])
    def test_an_unknown_policy_is_refused(self, db: Connection, policy: str | None) -> None:
        queue_with_slots(db, 1)
        with refused("PQ005", "there is no policy", "skip"):
            value(db, "select pgque.set_partition_policy('q', 'c', %s)", policy)

    def test_the_policy_of_an_unknown_consumer_is_refused(self, db: Connection) -> None:
        make_queue(db)
        with refused("PQ002", 'consumer "c" has no slots on queue "q"'):
            value(db, "select pgque.set_partition_policy('q', 'c', 'pause')")

    @pytest.mark.parametrize("name", ["c#0/2", "c#2/3", "c#7/3", "c"])
    def test_a_name_that_is_no_slot_now_leads_to_the_slots(self, db: Connection, name: str) -> None:
        queue_with_slots(db, 2)
        value(db, "select pgque.repartition('q', 'c', 3)")
        value(db, "select pgque.unsubscribe_slot('q', 'c', 2)")
        with refused(
            "PQ002",
            'consumer "c" on queue "q" has 3 slots now',
            "from c#0/3 to c#2/3",
            "select pgque.subscribe_slots('q', 'c', 3);",
        ):
            db.execute("select * from pgque.claim_batch('q', %s, 'run')", [name])

    def test_another_consumer_is_not_taken_for_a_slot(self, db: Connection) -> None:
        queue_with_slots(db, 1)
        with refused("PQ002", 'consumer "d" is not registered', "register_consumer"):
            db.execute("select * from pgque.claim_batch('q', 'd', 'run')")

    def test_a_slot_of_another_queue_is_not_taken_for_one(self, db: Connection) -> None:
        queue_with_slots(db, 1)
        make_queue(db, "other", consumers=())
        with refused("PQ002", 'consumer "c" is not registered', "register_consumer"):
            db.execute("select * from pgque.claim_batch('other', 'c', 'run')")

    @pytest.mark.parametrize(
        "call",
        [
            "next_batch('q', 'c#0/1')",
            "next_batch_custom('q', 'c#0/1', null, null, null)",
            "receive('q', 'c#0/1')",
            "register_subconsumer('q', 'c#0/1', 'sub', true)",
            "register_consumer_at('q', 'c#0/1', 1)",
            "unregister_consumer('q', 'c#0/1')",
            "unsubscribe('q', 'c#0/1')",
        ],
    )
    def test_a_slot_is_no_plain_consumer(self, db: Connection, call: str) -> None:
        queue_with_slots(db, 1)
        with refused("PQ015", 'consumer "c#0/1" on queue "q" is a slot of a partitioned one'):
            db.execute(f"select pgque.{call}".encode())

    @pytest.mark.parametrize(
        "call",
        [
            "ack({batch})",
            "finish_batch({batch})",
            "ack_batch({batch}, 'w', 1)",
            "renew_batch({batch}, 'w', 1)",
            "release_batch({batch}, 'w', 1)",
            "nack({batch}, row({id},{batch},'','',0,now(),'','','','')::pgque.message)",
        ],
    )
    def test_the_batch_of_a_slot_is_not_settled_past_its_lease(
        self, db: Connection, call: str
    ) -> None:
        queue_with_slots(db, 1)
        ((message, batch, *_),) = publish_and_receive(db)
        expire(db)
        with refused("PQ015", "is a slot of a partitioned one"):
            db.execute(f"select pgque.{call.format(batch=batch, id=message)}".encode())
        assert texts(receive(db, 0, 1)) == ["a"]
