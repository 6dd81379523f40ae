"""The clients that PgQue publishes work with this schema: in Python, TypeScript, Go and Ruby."""

from collections.abc import Iterator

import pgque
import pytest
from psycopg.pq import ExecStatus

from tests.client.consumer.support import Queue
from tests.support.queues.sql import Connection
from tests.support.runner.waiting import in_threads, wait_until


@pytest.fixture
def published(q: Queue) -> Iterator[pgque.PgqueClient]:
    """pgque-py."""
    with pgque.connect(q.url, autocommit=True) as client:
        yield client


class TestPython:
    def test_it_sends_receives_and_acks(self, published: pgque.PgqueClient) -> None:
        assert published.subscribe("q", "new") == 1
        sent = [
            published.send("q", {"n": 1}),
            published.send("q", pgque.Event({"n": 2}, type="order")),
            *published.send_batch("q", "order", [{"n": 3}, '"four"']),
        ]
        published.force_next_tick("q")
        published.ticker("q")
        messages = published.receive("q", "new")
        assert [message.msg_id for message in messages] == sent
        assert [message.type for message in messages] == ["default", "order", "order", "order"]
        assert [message.payload for message in messages][0::3] == ['{"n": 1}', '"four"']
        assert published.ack(messages[0].batch_id) == 1
        assert published.receive("q", "new") == []
        with pytest.raises(pgque.PgqueBatchNotFound):
            published.ack(messages[0].batch_id)

    def test_it_loses_none_of_a_batch_larger_than_it_receives(
        self, published: pgque.PgqueClient
    ) -> None:
        published.subscribe("q", "new")
        assert published.receive_coop("q", "team", "one") == []
        published.send_batch("q", "order", [{"n": n} for n in range(150)])
        published.force_next_tick("q")
        published.ticker("q")
        with pytest.raises(pgque.PgqueReceiveOverflowError) as refused:
            published.receive("q", "new")
        assert refused.value.configured_limit == 100
        with pytest.raises(pgque.PgqueReceiveOverflowError):
            published.receive_coop("q", "team", "one", max_messages=149)
        assert len(published.receive("q", "new", 150)) == 150

    def test_its_consumer_is_woken_by_notify(self, q: Queue, published: pgque.PgqueClient) -> None:
        # Long enough that only a NOTIFY ends the wait in time.
        consumer = pgque.Consumer(q.url, queue="q", name="c", poll_interval=3600)
        handled: list[object] = []
        consumer.on("order")(lambda message: handled.append(message.payload))
        consumer.on("*")(lambda message: handled.append(message.type))
        with in_threads(consumer.start, stop=consumer.stop):
            for count, type in enumerate(("order", "order", "other"), 1):
                published.send_batch("q", type, [str(count)])
                q.tick()
                wait_until(lambda count=count: len(handled) == count)  # type: ignore[misc]
        assert handled == ["1", "2", "other"]

    def test_its_errors_are_typed(self, published: pgque.PgqueClient) -> None:
        message = pgque.Message(1, 4711, "t", "{}", None, None)  # type: ignore[arg-type]
        with pytest.raises(pgque.PgqueQueueNotFound):
            published.send("nosuch", {})
        with pytest.raises(pgque.PgqueConsumerNotFound):
            published.receive("q", "nobody")
        with pytest.raises(pgque.PgqueBatchNotFound):
            published.nack(4711, message)
        with pytest.raises(pgque.PgqueConnectionError):
            pgque.connect("host=/nonexistent dbname=x")


STATEMENTS = [
    "select pgque.send($1, $2, $3::jsonb)",
    "select pgque.send($1, $2::jsonb)",
    "select pgque.send_batch($1, $2, $3::jsonb[])",
    "select unnest(pgque.send_batch($1, $2, $3::jsonb[]))",
    "select pgque.subscribe($1, $2)",
    "select pgque.unsubscribe($1, $2)",
    "select * from pgque.receive($1, $2, $3)",
    "select pgque.ack($1)",
    "select pgque.ticker($1)",
    "select pgque.ticker()",
    "select pgque.force_next_tick($1)",
    "select pgque.force_tick($1)",
    "select pgque.subscribe_subconsumer($1, $2, $3)",
    "select pgque.unsubscribe_subconsumer($1, $2, $3, $4)",
    "select * from pgque.receive_coop($1, $2, $3, $4, $5::interval)",
    "select pgque.touch_subconsumer($1, $2, $3)",
]

# Ruby's client casts the payload to jsonb, the others do not.
NACK = (
    "select pgque.nack($1, row($2, $3, $4, $5{}, $6, $7, $8, $9, $10, $11)::pgque.message,"
    " $12::interval, $13)"
)
NACKS = [NACK.format(cast) for cast in ("", "::jsonb")]


def run(db: Connection, statement: str, *params: str | None) -> list[list[str | None]]:
    """Runs a statement as their drivers do, which leave the types of parameters to the server."""
    values = [None if param is None else param.encode() for param in params]
    answer = db.pgconn.exec_params(statement.encode(), values)
    assert answer.status == ExecStatus.TUPLES_OK, answer.error_message.decode()
    return [
        [
            None if (cell := answer.get_value(row, column)) is None else cell.decode()
            for column in range(answer.nfields)
        ]
        for row in range(answer.ntuples)
    ]


class TestOtherLanguages:
    def test_each_statement_finds_one_function(self, db: Connection) -> None:
        for statement in [*STATEMENTS, *NACKS]:
            answer = db.pgconn.prepare(b"", statement.encode())
            assert answer.status == ExecStatus.COMMAND_OK, answer.error_message.decode()

    @pytest.mark.parametrize("nack", NACKS, ids=["text", "jsonb"])
    def test_events_are_sent_received_nacked_and_acked(self, q: Queue, nack: str) -> None:
        db = q.db
        assert run(db, "select pgque.subscribe($1, $2)", "q", "new") == [["1"]]
        run(db, "select pgque.send($1, $2, $3::jsonb)", "q", "order", '{"id": 1}')
        run(db, "select pgque.send_batch($1, $2, $3::jsonb[])", "q", "order", '{1,"{\\"id\\": 3}"}')
        q.tick()

        received = run(db, "select * from pgque.receive($1, $2, $3)", "q", "new", "100")
        assert [message[3] for message in received] == ['{"id": 1}', "1", '{"id": 3}']
        first = received[0]
        assert run(db, nack, first[1], *first, "0 seconds", "a reason") == [["1"]]
        assert run(db, "select pgque.ack($1)", first[1]) == [["1"]]

        db.value("select pgque.maint_retry_events()")
        q.tick()
        ((again, *_),) = db.rows("select msg_id from pgque.receive('q', 'new')")
        assert str(again) == first[0]
