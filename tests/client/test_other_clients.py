"""What PgQue's clients in TypeScript, Go and Ruby send finds its functions here.

Like their drivers, the tests leave the types of parameters to the server.
"""

from collections.abc import Sequence

import pytest
from psycopg.pq import ExecStatus

from tests.support.queues import Connection, make_queue, rows, tick, value

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
NACKS = [
    "select pgque.nack($1, row($2, $3, $4, $5, $6, $7, $8, $9, $10, $11)::pgque.message,"
    " $12::interval, $13)",
    "select pgque.nack($1, row($2, $3, $4, $5::jsonb, $6, $7, $8, $9, $10, $11)::pgque.message,"
    " $12::interval, $13)",
]


def run(db: Connection, statement: str, *params: str | None) -> Sequence[Sequence[str | None]]:
    """Runs a statement with parameters of unknown types, and returns its rows as texts."""
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


@pytest.mark.parametrize("statement", [*STATEMENTS, *NACKS])
def test_each_statement_finds_one_function(db: Connection, statement: str) -> None:
    answer = db.pgconn.prepare(b"", statement.encode())
    assert answer.status == ExecStatus.COMMAND_OK, answer.error_message.decode()


@pytest.mark.parametrize("nack", NACKS, ids=["text", "jsonb"])
def test_events_are_sent_received_nacked_and_acked(db: Connection, nack: str) -> None:
    make_queue(db, consumers=())
    assert run(db, "select pgque.subscribe($1, $2)", "q", "c") == [["1"]]
    run(db, "select pgque.send($1, $2, $3::jsonb)", "q", "order", '{"id": 1}')
    run(db, "select pgque.send_batch($1, $2, $3::jsonb[])", "q", "order", '{1,"{\\"id\\": 3}"}')
    tick(db)

    received = run(db, "select * from pgque.receive($1, $2, $3)", "q", "c", "100")
    assert [message[3] for message in received] == ['{"id": 1}', "1", '{"id": 3}']
    first = received[0]
    assert run(db, nack, first[1], *first, "0 seconds", "a reason") == [["1"]]
    assert run(db, "select pgque.ack($1)", first[1]) == [["1"]]

    value(db, "select pgque.maint_retry_events()")
    tick(db)
    ((again, *_),) = rows(db, "select msg_id from pgque.receive('q', 'c')")
    assert str(again) == first[0]
