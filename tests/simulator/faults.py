"""The SQL that a simulation installs: the engine's in a smaller scale, with a fault if asked for.

Each fault is one that the engine once had, or what it would have without one of its guards. The
simulator has to find each of them.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_INSTALL = Path(__file__).parent.parent.parent / "sql" / "pgque.sql"
# Logs are compacted, and long batches read in the other way, after tens of rows. A setting of the
# database says on which timeline its server is.
_SMALLER = (
    ("65536 + 400 * (", "8192 + 0 * ("),
    ("v_all <= 1000 + (", "v_all <= 5 + ("),
    ("greatest(v_needed, 1000)", "greatest(v_needed, 5)"),
    ("< 1000 + 2 * ((", "< 20 + 2 * (("),
    ("prev.tick_event_seq < 1000", "prev.tick_event_seq < 40"),
    (
        "('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint;",
        "coalesce(nullif(current_setting('simulator.timeline', true), ''), '1')::bigint;",
    ),
)


class Fault(NamedTuple):
    """A text of pgque.sql, and what stands there with the fault."""

    meaning: str
    right: str
    wrong: str


FAULTS = {
    "other_queues": Fault(
        "A batch without events gets those of other queues",
        "array[format('only pgque.event_%s', (pgque.find_batch(i_batch_id)).sub_queue)]",
        "array['pgque.event']",
    ),
    "retry_of_open_batch": Fault(
        "An event that was given back comes again before its batch is finished",
        "where b.ev_owner = r.ev_owner\n",
        "where false\n",
    ),
    "retry_of_replay": Fault(
        "A dead letter that was given back comes again, and a second time when it is replayed",
        "where r.ev_owner = v_owner and r.ev_id = i_dead_letter.ev_id;",
        "where false;",
    ),
    "replay_of_open_batch": Fault(
        "A dead letter is replayed while its batch is open",
        "if exists (select from pgque.open_batches(v_queue.queue_id, v_owner) b",
        "if exists (select from pgque.open_batches(-1, v_owner) b",
    ),
    "late_event": Fault(
        "A queue is quiet although its last tick left an event behind",
        "and (coalesce(d.event_seq = any (v_unfinished), true)",
        "and (false",
    ),
    "event_of_ticker": Fault(
        "What a ticker's own transaction sends after its tick is in no batch",
        "if v_own is null or v_own >= pg_snapshot_xmax(v_snapshot) then",
        "if true then",
    ),
    "dump_beside_rotation": Fault(
        "A dump that waits while events are rotated lacks them",
        "select n.* into v_note from pgque.rotation_floor n",
        "return v_floor; select n.* into v_note from pgque.rotation_floor n",
    ),
    "dump_beside_positions": Fault(
        "A dump that waits while positions are compacted lacks them",
        "or not pgque.is_seen_by_all(i_log, v_left.switched_by::text) then",
        "or i_log = 'tick' and not pgque.is_seen_by_all(i_log, v_left.switched_by::text) then",
    ),
    "dump_beside_ticks": Fault(
        "A dump that waits while ticks are compacted lacks them",
        "or not pgque.is_seen_by_all(i_log, v_left.switched_by::text) then",
        "or i_log = 'position' and not pgque.is_seen_by_all(i_log, v_left.switched_by::text) then",
    ),
    "move_in_old_snapshot": Fault(
        "A REPEATABLE READ transaction from before a compaction moves a consumer unseen",
        "insert into pgque.position_log_1 select * from moved;",
        "insert into pgque.position_log_1 select * from moved where i_half = 1;",
    ),
    "tick_in_old_snapshot": Fault(
        "A REPEATABLE READ transaction from before a compaction adds a tick to the old half",
        "perform pgque.check_tick_half() where v_strict;",
        "",
    ),
    "rotation_in_old_snapshot": Fault(
        "Rotation in REPEATABLE READ removes events that its snapshot does not see",
        "perform pgque.check_read_committed('rotation');",
        "",
    ),
    "rotation_without_look": Fault(
        "Rotation does not look for events of a writer that kept the table's name",
        "if v_needed then",
        "if false then",
    ),
    "rotation_before_slowest": Fault(
        "Rotation and compaction wait for the fastest consumer in place of the slowest",
        "(select min(s.sub_last_tick) from pgque.subscription s where s.sub_queue = i_queue_id)",
        "(select max(s.sub_last_tick) from pgque.subscription s where s.sub_queue = i_queue_id)",
    ),
    "late_ack": Fault(
        "An attempt acks after its lease went on to another one of the same name",
        "or i_sub.lease_epoch is distinct from i_epoch then",
        "then",
    ),
    "position_taken": Fault(
        "A move counts although another session took its number",
        "on conflict (sub_id, pos_seq) do nothing;\n    end if;\n    return found;",
        "on conflict (sub_id, pos_seq) do nothing;\n    end if;\n    return true;",
    ),
    "batch_on_other_half": Fault(
        "An open batch is looked for on one half of the log alone",
        "from pgque.position_log l\n          where l.sub_batch = i_batch_id",
        "from pgque.position_log_0 l\n          where l.sub_batch = i_batch_id",
    ),
    "poll_on_other_half": Fault(
        "A poll opens a batch on a half that was left",
        "p.next_half operator(pg_catalog.=) 0 and p.lease_until is null",
        "p.lease_until is null",
    ),
    "switch_beside_ticker": Fault(
        "A switch of the ticks does not wait for a ticker",
        "lock table only pgque.tick_log in exclusive mode;",
        "lock table only pgque.tick_log in access share mode;",
    ),
    "slots_not_at_one_tick": Fault(
        "Slots change their number before all stand at one tick",
        "(s.sub_batch is not null or s.sub_last_tick < v_tick));",
        "s.sub_batch is not null);",
    ),
    "retries_of_old_slots": Fault(
        "Retries of slots that are gone go to no slot",
        "where r.ev_owner = any (v_old_ids)\n      and",
        "where false and",
    ),
    "events_of_old_slots": Fault(
        "Retries that were in the queue again go to no slot",
        "'join unnest($2) o on o.sub_id = e.ev_owner and",
        "'join unnest($2) o on false and",
    ),
    "late_ack_of_dead_worker": Fault(
        "A worker whose batch was taken over finishes it",
        "v_sub.sub_batch := pgque.next_batch_id();\n        v_sub.sub_last_tick",
        "v_sub.sub_batch := coalesce(v_from.sub_batch, pgque.next_batch_id());\n"
        "        v_sub.sub_last_tick",
    ),
    "worker_leaves_with_batch": Fault(
        "A worker leaves with a batch that it got meanwhile",
        "exit when pgque.append_position(v_sub);\n    end loop;\n\n    if v_sub.sub_batch is",
        "exit;\n    end loop;\n\n    if v_sub.sub_batch is",
    ),
    "key_that_ends_in_transaction": Fault(
        "A key whose time ends within the sender's transaction is neither there nor free",
        "pg_catalog.<=) pg_catalog.clock_timestamp()\n        returning",
        "pg_catalog.<=) pg_catalog.now()\n        returning",
    ),
    "range_before_first_tick": Fault(
        "Readers without a position are offered ticks whose events are gone",
        "and t.tick_id = i_tick_id\n      and t.tick_id >= i_queue.queue_first_tick;",
        "and t.tick_id = i_tick_id;",
    ),
    "range_of_all_consumers": Fault(
        "Readers without a position get what came again to one consumer",
        "v_owner  text := 'ev_owner is null'",
        "v_owner  text := 'true'",
    ),
    "set_aside_at_once": Fault(
        "A small batch that is read at once has the events that were set aside",
        "where a.sub_id = s.sub_id and a.batch_id = x_batch_id)",
        "where false)",
    ),
    "set_aside": Fault(
        "A batch that is read otherwise has the events that were set aside",
        "where a.sub_id = v_sub.sub_id and a.batch_id = i_batch_id));",
        "where false));",
    ),
    "batch_ids_after_promotion": Fault(
        "A promoted standby gives out batch ids of lost transactions again",
        "+ 1000000 + floor(random() * 1000000000)::bigint",
        "+ 0",
    ),
}


def install_sql(fault: str | None = None) -> bytes:
    """Returns what to install."""
    sql = _INSTALL.read_text()
    changes = [*_SMALLER]
    if fault:
        changes.append((FAULTS[fault].right, FAULTS[fault].wrong))
    for right, _ in changes:
        if sql.count(right) != 1:
            raise ValueError(f"pgque.sql has {sql.count(right)} times: {right}")
    return smaller(sql, changes).encode()


def smaller(sql: str, changes: Sequence[tuple[str, str]] = _SMALLER) -> str:
    """Returns SQL of the engine in the scale of the simulator."""
    for right, wrong in changes:
        sql = sql.replace(right, wrong)
    return sql
