-- The tables that are set apart and need the events after a tick: to apply them, or to complete a copy.
create or replace view pgque.kept_for_table as
select s.sub_queue as queue_id, s.sub_consumer, a.table_name, a.tick_id
from pgque.replica_apart a
join pgque.subscription_base s on s.sub_id = a.sub_id
left join pgque.replica_table r on (r.sub_id, r.table_name) = (a.sub_id, a.table_name)
where a.copying is not null or r.incarnation = pgque.incarnation()::text;

-- Returns the newest tick that every consumer of a queue has passed, with its tables that are set apart;
-- null if no consumer is registered.
create or replace function pgque.find_passed_tick(i_queue_id integer)
returns bigint
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return least((select min(s.sub_last_tick) from pgque.subscription s where s.sub_queue = i_queue_id),
         (select min(k.tick_id) from pgque.kept_for_table k where k.queue_id = i_queue_id));
end;
$$;

-- The same, or the last tick if no consumer is registered. The events that its snapshot sees are not needed.
create or replace function pgque.find_floor_tick(i_queue_id integer)
returns pgque.tick
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return pgque.find_tick(i_queue_id, coalesce(
    pgque.find_passed_tick(i_queue_id),
    (select max(t.tick_id) from pgque.tick t where t.tick_queue = i_queue_id)));
end;
$$;

-- Returns the newest tick that is older than a queue's retention, or the first tick if none is, or null
-- without a retention. Every event that was committed within the retention comes after it, because a
-- tick's snapshot is older than its time. A week may have millions of ticks, so this is a binary search
-- by id; ids may have gaps.
create or replace function pgque.find_retention_tick(i_queue pgque.queue)
returns bigint
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_until   constant timestamptz := clock_timestamp() - i_queue.queue_retention;
    v_low     bigint;
    v_high    bigint;
    v_middle  bigint;
    v_tick    pgque.tick;
begin
    if v_until is null then
        return null;
    end if;
    select min(t.tick_id), max(t.tick_id) into v_low, v_high
    from pgque.tick t
    where t.tick_queue = i_queue.queue_id;
    while v_low < v_high loop
        v_middle := (v_low + v_high) / 2;
        select t.* into v_tick
        from pgque.tick t
        where t.tick_queue = i_queue.queue_id and t.tick_id > v_middle
        order by t.tick_id
        limit 1;
        if v_tick.tick_id <= v_high and v_tick.tick_time < v_until then
            v_low := v_tick.tick_id;
        else
            v_high := v_middle;
        end if;
    end loop;
    return v_low;
end;
$$;

-- Returns the tick whose events rotation may truncate: every consumer has passed it, and it is older
-- than the queue's retention.
create or replace function pgque.find_truncation_floor(i_queue_id integer)
returns pgque.tick
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return pgque.find_tick(i_queue_id, least(
    (pgque.find_floor_tick(i_queue_id)).tick_id,
    (select pgque.find_retention_tick(q) from pgque.queue q where q.queue_id = i_queue_id)));
end;
$$;

-- Returns the shortest time between two rotations of a queue. A table is truncated two rotations after
-- its last event, so with half the retention this event is just old enough.
create or replace function pgque.rotation_interval(i_queue pgque.queue)
returns interval
language sql immutable
as $$
    select greatest(i_queue.queue_rotation_period,
                    i_queue.queue_retention operator(pg_catalog./) 2)
$$;

-- Returns the tick up to which every snapshot sees the events as consumed, or null while some snapshot
-- may not. It records up to where events may be truncated; the record counts once no snapshot from
-- before it is left.
-- locks: held by the caller. writes: rotation_floor, snapshot_wait.
create or replace function pgque.settle_floor(i_queue_id integer)
returns pgque.tick
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_wait   constant text := format('queue %s', i_queue_id);
    v_floor  pgque.tick := pgque.find_truncation_floor(i_queue_id);
    v_note   pgque.rotation_floor;
begin
    select n.* into v_note from pgque.rotation_floor n where n.queue_id = i_queue_id;
    if v_note.tick_id is not null
       and not pgque.is_seen_by_all(v_wait, format('tick %s', v_note.tick_id)) then
        return null;
    elsif v_floor.tick_id <= v_note.tick_id then
        return v_floor;
    end if;

    insert into pgque.rotation_floor (queue_id, tick_id, snapshot)
    values (i_queue_id, v_floor.tick_id, v_floor.tick_snapshot)
    on conflict (queue_id) do update set tick_id = excluded.tick_id, snapshot = excluded.snapshot;
    -- An earlier record of this tick may have been withdrawn when a consumer went back.
    delete from pgque.snapshot_wait w where w.wait_name = v_wait;
    if not pgque.is_seen_by_all(v_wait, format('tick %s', v_floor.tick_id)) then
        v_floor.tick_id := v_note.tick_id;
        v_floor.tick_snapshot := v_note.snapshot;
    end if;
    return v_floor;
end;
$$;

-- Rotation, step 1: empties a child of the queue's event table that is not current, and makes it the
-- current one. It takes the oldest child, or the other one if the oldest is still needed. Returns 1, or
-- 0 if it is too early (rotation_interval), if step 2 of the last rotation has not run, if an old
-- snapshot may need events, if neither child can be emptied, or if the queue does not exist. The child
-- that comes next is closed to writers. If the oldest child was skipped, it stays closed instead.
-- locks: the queue's row, so that no consumer registers meanwhile; the child, exclusively. writes:
-- queue, rotation_floor, the catalog; truncates the child.
create or replace function pgque.maint_rotate_tables_step1(i_queue_name text)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp set lock_timeout = '1s'
as $$
declare
    v_queue  pgque.queue := pgque.look_for_queue(i_queue_name);
    v_floor  pgque.tick;
    v_next   integer;
begin
    perform pgque.check_read_committed('rotation');
    perform pgque.check_adopted();
    select q.* into v_queue
    from pgque.queue q
    where q.queue_id = v_queue.queue_id
      and q.queue_switch_step2 is not null
      and (clock_timestamp() - q.queue_switch_time >= pgque.rotation_interval(q)
           or q.queue_switch_time > clock_timestamp())  -- the clock was set back
    for no key update skip locked;
    if not found then
        return 0;
    end if;

    v_floor := pgque.settle_floor(v_queue.queue_id);
    if v_floor.tick_id is null then
        return 0;
    end if;
    for v_ahead in 1 .. v_queue.queue_ntables - 1 loop
        v_next := (v_queue.queue_cur_table + v_ahead) % v_queue.queue_ntables;
        continue when not pgque.empty_event_table(
            format('%s_%s', v_queue.queue_data_pfx, v_next), v_floor.tick_snapshot);
        update pgque.queue
        set queue_cur_table = v_next,
            queue_switch_step1 = pg_current_xact_id()::text::bigint,
            queue_switch_step2 = null,
            queue_switch_time = clock_timestamp(),
            -- A retention that was set later begins before events that are gone.
            queue_first_tick = greatest(queue_first_tick, v_floor.tick_id)
        where queue_id = v_queue.queue_id;
        if v_ahead = 1 then
            perform pgque.open_event_tables(v_queue.queue_id);
        end if;
        return 1;
    end loop;
    return 0;
end;
$$;

-- Returns the size of a queue's event tables. If no event was sent since the last rotations it is 0, and
-- maintenance does not rotate the queue.
create or replace function pgque.event_bytes(i_queue pgque.queue)
returns bigint
language plpgsql stable security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return (select sum(pg_relation_size(to_regclass(format('%s_%s', i_queue.queue_data_pfx, nr))))
    from generate_series(0, i_queue.queue_ntables - 1) nr);
end;
$$;

-- Truncates an event table, unless a session uses it or it holds an event that the floor tick did not
-- see, which is checked under the exclusive lock. Returns whether the table is empty now.
-- locks: the table, exclusively, without waiting. writes: truncates it.
create or replace function pgque.empty_event_table(i_table text, i_floor pg_snapshot)
returns boolean
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_needed boolean;
begin
    -- If the table is not truncated, the rollback of the inner block releases the lock.
    begin
        perform pgque.commit_locally();
        execute format('lock table %s in access exclusive mode nowait', i_table);  -- quoted: a number's
        execute format('select exists (select from %s where ev_txid >= $1 '  -- quoted: a number's
                       'and not pg_visible_in_snapshot(ev_txid, $2))', i_table)
        into v_needed using pg_snapshot_xmin(i_floor), i_floor;
        if v_needed then
            raise exception using errcode = 'lock_not_available';
        end if;
        execute format('truncate %s', i_table);  -- quoted: a number's
        return true;
    exception
        when lock_not_available then
            return false;
    end;
end;
$$;

-- Rotation, step 2, in a later transaction than step 1: records that the switch is committed, which
-- allows the next one.
-- locks: rows of the queues it notes, without waiting. writes: queue.
create or replace function pgque.maint_rotate_tables_step2()
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp set lock_timeout = '1s'
as $$
declare
    v_noted integer;
begin
    update pgque.queue
    set queue_switch_step2 = pg_current_xact_id()::text::bigint
    where queue_id in (
        select q.queue_id
        from pgque.queue q
        where q.queue_switch_step2 is null
          and q.queue_switch_step1 <> coalesce(pg_current_xact_id_if_assigned()::text::bigint, 0)
        for no key update skip locked);
    get diagnostics v_noted = row_count;
    return v_noted;
end;
$$;
