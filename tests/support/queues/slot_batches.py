"""Batches of slots: claimed, read and acked with the functions of normal consumers."""

from typing import Any, NamedTuple

from tests.support.queues.slots import publish_keyed, slot_of
from tests.support.queues.sql import Connection

KEYS = [f"key {number}" for number in range(12)]


class Claim(NamedTuple):
    batch: int
    owner: str
    epoch: int


def subscribe(db: Connection, n: int = 2, start_at: str | None = None) -> int:
    return db.value("select pgque.subscribe_slots('q', 'c', %s, %s)", n, start_at)


def take(
    db: Connection,
    slot: int = 0,
    n: int = 2,
    owner: str = "run",
    ttl: str = "1 minute",
    batch: int | None = None,
    most: int | None = None,
) -> Claim | None:
    """Claims the slot's batch; None if it has none."""
    ((found, epoch),) = db.rows(
        "select batch_id, epoch from pgque.claim_batch('q', %s, %s, %s, i_batch_id => %s,"
        " i_max_count => %s)",
        f"c#{slot}/{n}",
        owner,
        ttl,
        batch,
        most,
    )
    return None if found is None else Claim(found, owner, epoch)


def taken(db: Connection, slot: int = 0, n: int = 2, **more: Any) -> Claim:
    claimed = take(db, slot, n, **more)
    assert claimed is not None
    return claimed


def let_go(db: Connection, claimed: Claim) -> None:
    db.value("select pgque.release_batch(%s, %s, %s)", *claimed)


def finish(db: Connection, claimed: Claim) -> None:
    db.value("select pgque.ack_batch(%s, %s, %s)", *claimed)


def read(db: Connection, claimed: Claim) -> list[str]:
    """The batch's payloads in order of id, the same by each way of reading."""
    by_rows = db.rows("select ev_id, ev_data from pgque.get_batch_events(%s)", claimed.batch)
    plan = db.rows(
        "select slice_sql, batch_events from pgque.batch_read_plan(%s, 3)", claimed.batch
    )
    by_slices = [row for sql, _ in plan for row in db.rows(f"select ev_id, ev_data from ({sql}) s")]
    assert sorted(by_slices) == by_rows
    assert {planned for _, planned in plan} <= {len(by_rows)}
    assert db.value("select pgque.batch_has_events(%s)", claimed.batch) is bool(by_rows)
    return [payload for _, payload in by_rows]


def drain(db: Connection, n: int, most: int | None = None) -> list[str]:
    """All that the slots have, slot by slot, acked."""
    found: list[str] = []
    for slot in range(n):
        while claimed := take(db, slot, n, most=most):
            found += read(db, claimed)
            finish(db, claimed)
    return found


def publish_round(db: Connection, number: int) -> None:
    publish_keyed(db, *((key, f"{key}: {number}") for key in KEYS))


def in_order(found: list[str]) -> dict[str, list[int]]:
    numbers: dict[str, list[int]] = {key: [] for key in KEYS}
    for text in found:
        key, number = text.split(": ")
        numbers[key].append(int(number))
    return numbers


def keys_of(db: Connection, slot: int, n: int = 2) -> list[str]:
    return [key for key in KEYS if slot_of(db, key, n) == slot]
