"""Text of users stays text: in names, types, payloads, reasons, owners and parameters."""

import pytest

from tests.support.queues import (
    Connection,
    events,
    finish,
    make_queue,
    next_batch,
    refused,
    rotate,
    rows,
    send,
    tick,
    value,
)

ATTACKS = [
    "'; drop table victim; --",
    "'); drop table victim; --",
    '"; drop table victim; --',
    "$f$; drop table victim; --",
    "$fn$; drop table victim; --",
    "%1$s %I %L %s",
    "{}'::jsonb); drop table victim; --",
]


@pytest.fixture
def victim(db: Connection) -> Connection:
    db.execute("create table victim ()")
    return db


def survived(db: Connection) -> bool:
    there: bool = value(db, "select to_regclass('victim') is not null")
    return there


@pytest.mark.parametrize("attack", ATTACKS)
class TestAttack:
    def test_through_a_queue_name(self, victim: Connection, attack: str) -> None:
        make_queue(victim, attack)
        send(victim, "x", queue=attack)
        tick(victim, attack)
        batch = next_batch(victim, attack)
        value(victim, "select count(*) from pgque.batch_read_plan(%s, 2)", batch)
        finish(victim, batch)
        rotate(victim, attack)
        value(victim, "select pgque.maint()")
        value(victim, "select pgque.drop_queue(%s, true)", attack)
        assert survived(victim)

    def test_through_a_consumer_name(self, victim: Connection, attack: str) -> None:
        make_queue(victim, consumers=(attack,))
        send(victim, "x")
        tick(victim)
        finish(victim, next_batch(victim, consumer=attack))
        value(victim, "select pgque.unregister_consumer('q', %s)", attack)
        assert survived(victim)

    def test_through_names_in_errors(self, victim: Connection, attack: str) -> None:
        make_queue(victim)
        with refused("PQ001", attack):
            send(victim, "x", queue=attack)
        with refused("PQ002", attack):
            next_batch(victim, consumer=attack)
        assert survived(victim)

    def test_through_type_payload_and_extras(self, victim: Connection, attack: str) -> None:
        make_queue(victim)
        value(victim, "select pgque.insert_event('q', %s, %s, %s, %s, %s, %s)", *[attack] * 6)
        value(victim, "select pgque.send('q', %s, %s::text)", attack, attack)
        value(victim, "select pgque.send_batch('q', %s, %s::text[])", attack, [attack])
        tick(victim)
        stored = {text for row in events(victim, next_batch(victim)) for text in row[4:] if text}
        assert (stored, survived(victim)) == ({attack}, True)

    def test_through_reasons(self, victim: Connection, attack: str) -> None:
        make_queue(victim, max_retries="0")
        ids = send(victim, attack, attack)
        tick(victim)
        batch = next_batch(victim)
        value(victim, "select pgque.nack_batch(%s, %s, '0', %s)", batch, ids[:1], attack)
        value(victim, "select pgque.dead_letter_batch(%s, %s, %s)", batch, ids[1:], attack)
        value(victim, "select replayed from pgque.dlq_replay_all('q')")
        assert survived(victim)

    def test_through_owners(self, victim: Connection, attack: str) -> None:
        make_queue(victim)
        send(victim, "x")
        tick(victim)
        sql = "select batch_id, epoch from pgque.claim_batch('q', 'c', %s)"
        ((batch, epoch),) = rows(victim, sql, attack)
        with refused("PQ004", attack):
            next_batch(victim)
        value(victim, "select pgque.renew_batch(%s, %s, %s)", batch, attack, epoch)
        value(victim, "select pgque.ack_batch(%s, %s, %s)", batch, attack, epoch)
        assert survived(victim)

    def test_through_parameters(self, victim: Connection, attack: str) -> None:
        make_queue(victim)
        with refused("PQ005"):
            value(victim, "select pgque.set_queue_config('q', 'ticker_max_lag', %s)", attack)
        with refused("PQ005"):
            value(victim, "select pgque.set_queue_config('q', %s, '1')", attack)
        assert survived(victim)
