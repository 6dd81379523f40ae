-- Returns the snapshot that a tick stores. A transaction that already has an id counts as finished
-- in its own snapshot, although it may still insert events. So the ticker's own id is added to the
-- transactions in progress, and all its events come in a later batch.
create or replace function pgque.tick_snapshot()
returns pg_snapshot
language plpgsql stable set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_snapshot  pg_snapshot := pg_current_snapshot();
    v_own       xid8 := pg_current_xact_id_if_assigned();
    v_running   text;
begin
    if v_own is null or v_own >= pg_snapshot_xmax(v_snapshot) then
        return v_snapshot;
    end if;

    select string_agg(x::text, ',' order by x) into v_running
    from (select pg_snapshot_xip(v_snapshot) union select v_own) running(x);
    -- PostgreSQL counts the own id for xmin.
    return format('%s:%s:%s', pg_snapshot_xmin(v_snapshot), pg_snapshot_xmax(v_snapshot),
                  v_running)::pg_snapshot;
end;
$$;

-- Raises a serialization failure in a transaction whose snapshot is older than a switch of the tick
-- log. Such a transaction would add a tick to the half that was left, or register a consumer at a
-- tick that is only there. READ COMMITTED needs no check: the statement that inserts ticks takes
-- its snapshot after its lock, which the switch waits for, and so sees the current half.
-- locks: in a stricter isolation the row of log, shared. writes: nothing.
create or replace function pgque.check_tick_half()
returns void
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        perform from pgque.log l where l.log_name = 'tick' for share;
    end if;
end;
$$;

-- Queues whose next tick is due, with their last tick and the last event id given out. A tick is due
-- if there are enough new events; if there are any new events, or events that the last tick may have
-- left behind, once that tick is older than the lag; after the idle period; on request; and at once for
-- a queue's first event, or if the clock was set back behind the last tick.
create or replace view pgque.tick_due as
select q.queue_id, q.queue_name, last_tick.tick_id as last_tick_id, seq.last_event_id,
       last_tick.tick_event_seq as last_tick_event_seq, q.queue_seq as event_seq, last_tick.left_some,
       seq.last_event_id > last_tick.tick_event_seq as has_new,
       clock_timestamp() - last_tick.tick_time
           < greatest(q.queue_ticker_max_lag, interval '200 ms') as is_busy
from pgque.queue q
cross join lateral (
    select t.tick_id, t.tick_time, t.tick_event_seq, t.left_some
    from pgque.tick t
    where t.tick_queue = q.queue_id
    order by t.tick_id desc
    limit 1
) last_tick
cross join lateral (
    select coalesce(pg_sequence_last_value(q.queue_seq), 0) as last_event_id
) seq
where not q.queue_external_ticker
  and not q.queue_ticker_paused
  and (seq.last_event_id - last_tick.tick_event_seq >= q.queue_ticker_max_count
       or (seq.last_event_id > last_tick.tick_event_seq or last_tick.left_some)
          and clock_timestamp() - last_tick.tick_time >= q.queue_ticker_max_lag
       or seq.last_event_id > 0 and last_tick.tick_event_seq = 0
       or clock_timestamp() - last_tick.tick_time >= q.queue_ticker_idle_period
       or last_tick.tick_time > clock_timestamp()
       or exists (select from pgque.tick_request r where r.queue_id = q.queue_id));

-- Lists the sequences from which an unfinished transaction may have taken an id: nextval() locks
-- the sequence before it gives an id out, until its transaction ends. Such a transaction has an id, or
-- runs a statement, which holds a snapshot from before it draws an event's id until it has one. Only an
-- id that is drawn with nextval() in a separate statement could be missed. PostgreSQL
-- walks through the whole table of locks, so it is read only if there is such a transaction.
create or replace function pgque.seqs_in_use()
returns oid[]
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_database  constant oid := (select d.oid from pg_database d where d.datname = current_database());
    v_running   integer[];
begin
    perform pg_stat_clear_snapshot();  -- otherwise an earlier answer in this transaction is repeated
    v_running := array(select a.pid
                       from pg_stat_get_activity(null) a
                       where a.datid = v_database and a.pid <> pg_backend_pid()
                         and (a.backend_xid is not null or a.backend_xmin is not null));
    if v_running = '{}' and not exists (select from pg_prepared_xact()) then
        return array[]::oid[];
    end if;
    return array(select l.relation
                 from pg_locks l
                 where l.granted and l.locktype = 'relation' and l.mode = 'RowExclusiveLock'
                   and l.database = v_database
                   and (l.pid = any (v_running) or l.pid is null));  -- null: a prepared transaction
end;
$$;

-- Ticks the queues between two ids that are due and that no other transaction is ticking; returns
-- the new ticks' ids. Locked rows are skipped, so that a ticker inside a long transaction delays no
-- other queue. Only a role with rights on the table tick_state can take this lock.
--
-- A tick leaves an event behind if the event's id counts and its transaction is not in the
-- snapshot. Either that transaction took the id before the tick fell due: then it was unfinished when
-- we looked for such transactions, before the snapshot. Or it took the id later: then the sequence
-- advanced. If no id was given out since a tick that left nothing behind, this one leaves nothing
-- behind either.
--
-- If unfinished transactions are not looked for, a tick with new events is assumed to leave some behind. This
-- never loses an event, but causes one tick too many when the queue becomes quiet. So they are not looked
-- for on a busy queue, or if this is already assumed. They are looked for when a queue has its first
-- events for some time, and by the tick that is due after the lag without new events. A ticker that may
-- have an older snapshot, or has its own events, assumes it, too.
-- Refuses a database that was restored and is not adopted, as check_adopted does.
-- locks: the rows in tick_state of the queues it ticks. writes: tick, tick_request; notifies.
create or replace function pgque.make_ticks(i_first_queue integer, i_last_queue integer)
returns bigint[]
language plpgsql set plan_cache_mode = force_generic_plan
as $$
declare
    v_strict      constant boolean := current_setting('transaction_isolation') not like 'read %';
    v_unsure      constant boolean := v_strict or pg_current_xact_id_if_assigned() is not null;
    v_due         pgque.tick_due[];
    v_look        boolean;
    v_requests    bigint[];
    v_unfinished  oid[];  -- null: they were not looked for
    v_ticks       bigint[];
    v_ticked      integer[];
begin
    perform pgque.check_tick_half() where v_strict;
    select array_agg(d), bool_or(d.has_new <> d.left_some and (d.left_some or not d.is_busy)),
           array(select r.request_id from pgque.tick_request r)
    into v_due, v_look, v_requests
    from pgque.tick_due d
    where d.queue_id between i_first_queue and i_last_queue;
    if not pgque.is_timeline_followed() then
        perform pgque.check_adopted(), pgque.follow_timeline();
    end if;
    if v_due is null then
        return array[]::bigint[];
    elsif v_look and not v_unsure then
        v_unfinished := pgque.seqs_in_use();
    end if;
    with due as materialized (
        select d.queue_id, d.queue_name, d.last_tick_id, d.left_some, d.event_seq,
               d.last_event_id as seen_event_id, d.last_tick_event_seq,
               coalesce(pg_sequence_last_value(d.event_seq), 0) as last_event_id
        from pgque.tick_state s
        join unnest(v_due) d on d.queue_id = s.queue_id
        for update of s skip locked
    ), ticked as (
        insert into pgque.tick_log (
            tick_queue, tick_id, tick_time, tick_snapshot, tick_event_seq, half, left_some)
        select d.queue_id, d.last_tick_id + 1, clock_timestamp(),
               case when v_unsure then pgque.tick_snapshot() else pg_current_snapshot() end,
               d.last_event_id, (select l.half from pgque.log l where l.log_name = 'tick'),
               (d.left_some or d.last_event_id > d.last_tick_event_seq)
               and (coalesce(d.event_seq = any (v_unfinished), true)
                    or d.last_event_id > d.seen_event_id)
        from due d
        on conflict (tick_queue, tick_id, half) do nothing
        returning tick_queue, tick_id
    )
    select array_agg(t.tick_id) filter (  -- of all: it returns no null
               where pg_notify('pgque_' || d.queue_name, t.tick_id::text) is not null),
           array_agg(t.tick_queue)
    into v_ticks, v_ticked
    from ticked t
    join due d on d.queue_id = t.tick_queue;
    if v_requests <> '{}' then
        delete from pgque.tick_request r where r.queue_id = any (v_ticked) and r.request_id = any (v_requests);
    end if;
    return coalesce(v_ticks, '{}');
end;
$$;

-- Ticks every queue that is due; returns how many. Waits at most a second for a lock.
-- locks: those of make_ticks. writes: the same.
create or replace function pgque.ticker()
returns bigint
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp set lock_timeout = '1s'
as $$
begin
    return cardinality(pgque.make_ticks(0, 2147483647));
exception when lock_not_available then
    perform pgque.refuse_locked('ticks', 'The next call tries again: let them end.');
    return null;
end;
$$;

-- Ticks one queue if it is due; returns the new tick's id, or null. Refuses a queue that is paused
-- or has an external ticker.
-- locks: those of make_ticks. writes: the same.
create or replace function pgque.ticker(i_queue_name text)
returns bigint
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp set lock_timeout = '1s'
as $$
declare
    v_queue pgque.queue;
begin
    v_queue := pgque.find_queue(i_queue_name);
    if v_queue.queue_ticker_paused or v_queue.queue_external_ticker then
        perform pgque.refuse_tick(v_queue);
    end if;
    return (pgque.make_ticks(v_queue.queue_id, v_queue.queue_id))[1];
exception when lock_not_available then
    perform pgque.refuse_locked('ticks', 'The next call tries again: let them end.');
    return null;
end;
$$;

-- Makes the next ticker run tick this queue regardless of its thresholds; returns the last tick id.
-- Refused while the queue is paused or has an external ticker.
-- locks: none. writes: tick_request.
create or replace function pgque.force_next_tick(i_queue_name text)
returns bigint
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_queue pgque.queue := pgque.find_queue(i_queue_name);
begin
    if v_queue.queue_ticker_paused or v_queue.queue_external_ticker then
        perform pgque.refuse_tick(v_queue);
    end if;
    insert into pgque.tick_request (queue_id) values (v_queue.queue_id);
    return (select max(t.tick_id) from pgque.tick t where t.tick_queue = v_queue.queue_id);
end;
$$;

-- Returns how often ticker_loop ticks, and for how long it runs.
create or replace function pgque.ticker_pace(out tick_period interval, out ticker_slot interval)
language plpgsql stable security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    select make_interval(secs => c.tick_period_ms / 1000.0), c.ticker_slot
    into tick_period, ticker_slot
    from pgque.config c;
end;
$$;
