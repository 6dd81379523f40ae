-- The logs whose rotation is due: metadata_rotation_period has passed since the last time, or they are
-- on their second half. maint_steps lists them; the functions below do not look at the time.
create or replace view pgque.rotation_due as
select r.log_name
from pgque.log_rotation r
cross join pgque.config c
left join pgque.log l on l.log_name = r.log_name
where r.rotated_at is null
   or r.rotated_at <= clock_timestamp() - c.metadata_rotation_period
   or l.half = 1;

-- Compaction of the logs of positions and ticks (schema/log.sql). It copies the rows that are still
-- needed to the other half and makes that half current. A consumer waits a few milliseconds for it,
-- or up to 800, if others keep the lock (set_lock_wait). A snapshot older than the switch finds
-- every row where it was.

-- Moves the subscriptions that continue in the other half to half i_half: writes their newest positions
-- to both halves, under the next number. A session that has read an older position finds that number
-- taken. Returns how many subscriptions it moved.
-- locks: held by the caller. writes: position_log.
create or replace function pgque.move_positions(i_half smallint)
returns bigint
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_rows bigint;
begin
    with moved as (
        insert into pgque.position_log_0
        select p.sub_id, p.pos_seq + 1, p.sub_last_tick, p.sub_active, p.sub_batch, p.sub_next_tick,
               p.lease_owner, p.lease_until, p.lease_epoch, null, i_half, p.lease_ttl,
               p.page_from, p.page_to
        from pgque.subscription_base s
        cross join lateral (
            select *
            from pgque.position_log l
            where l.sub_id = s.sub_id
            order by l.pos_seq desc
            limit 1
        ) p
        where p.next_half <> i_half
        returning *
    )
    insert into pgque.position_log_1 select * from moved;
    get diagnostics v_rows = row_count;
    return v_rows;
end;
$$;

-- Switches the log of positions to the other half, if that half is empty: away from half 0 when it has
-- outgrown its subscriptions, and back from half 1 at once. Returns how many unneeded positions stay
-- behind, at least 1, or 0 if it did not switch.
-- locks: the log's row in log_rotation; position_log against writers. writes: position_log, log,
-- log_rotation.
create or replace function pgque.maint_compact_positions()
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp set lock_timeout = '10ms'
as $$
declare
    v_half    smallint;
    v_before  bigint;
begin
    perform pgque.check_read_committed('compaction');
    perform from pgque.log_rotation r
    where r.log_name = 'position'
    for update skip locked;
    if not found or exists (select from pgque.left_half h where h.log_name = 'position') then
        return 0;
    end if;
    v_half := (select l.half from pgque.log l where l.log_name = 'position');
    if v_half = 0 and pg_relation_size(format('pgque.position_log_%s', v_half)) < 65536 + 400 * (
           select count(*) from pgque.subscription_base) then
        return 0;
    end if;

    select count(*) into v_before from pgque.position_log;
    perform pgque.commit_locally();
    perform pgque.set_lock_wait();
    execute format('lock table only %s in share row exclusive mode',  -- quoted: a number's
                   format('pgque.position_log_%s', v_half));
    update pgque.log l set half = 1 - l.half, switched_by = pg_current_xact_id()
    where l.log_name = 'position';
    update pgque.log_rotation r set rotated_at = clock_timestamp() where r.log_name = 'position';
    return greatest(v_before - pgque.move_positions((1 - v_half)::smallint), 1);
exception
    when lock_not_available then
        return 0;
end;
$$;

-- The first tick of each queue that must stay, because of its consumers' positions, its retention, and
-- the last two ticks, which give the event rate.
create or replace view pgque.needed_tick as
select q.queue_id,
       least(pgque.find_passed_tick(q.queue_id),
             (select max(t.tick_id) - 1 from pgque.tick t where t.tick_queue = q.queue_id),
             case when q.queue_retention is not null then pgque.find_retention_tick(q) end)
       as first_tick
from pgque.queue q;

-- Returns whether a copy leaves more ticks behind than it copies, so that the cost per tick is constant,
-- no matter how far a consumer lags.
create or replace function pgque.are_ticks_obsolete()
returns boolean
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_all     bigint := (select count(*) from pgque.tick);
    v_needed  bigint;
begin
    if v_all <= 1000 + (select count(*) from pgque.queue) then
        return false;  -- each queue needs one
    end if;
    select coalesce(sum(t.ticks), 0) into v_needed
    from pgque.needed_tick n
    cross join lateral (
        select count(*) as ticks
        from pgque.tick t
        where t.tick_queue = n.queue_id and t.tick_id >= n.first_tick) t;
    return v_all - v_needed > greatest(v_needed, 1000);
end;
$$;

-- Copies the ticks that are still needed to the other half, without a lock on the log, because a lagging
-- consumer may need a million ticks. From half 0 it copies only if that pays; from half 1 it copies at
-- once. It copies queue by queue, because the log has no statistics, and the planner would join all of
-- it with all queues. Returns 1 when it made a copy.
-- locks: the log's row in log_rotation. writes: tick_log, history, log_rotation.
create or replace function pgque.maint_copy_ticks()
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp set lock_timeout = '10ms'
as $$
declare
    v_half  smallint;
begin
    perform pgque.check_read_committed('compaction');
    perform from pgque.log_rotation r
    where r.log_name = 'tick' and not r.is_copied
    for update skip locked;
    if not found or exists (select from pgque.left_half h where h.log_name = 'tick') then
        return 0;
    end if;
    v_half := (select l.half from pgque.log l where l.log_name = 'tick');
    if v_half = 0 and not pgque.are_ticks_obsolete() then
        return 0;
    end if;

    insert into pgque.tick_log
    select t.tick_queue, t.tick_id, t.tick_time, t.tick_snapshot, t.tick_event_seq, 1 - v_half,
           t.left_some
    from pgque.needed_tick n
    cross join lateral (
        select *
        from pgque.tick l
        where l.tick_queue = n.queue_id and l.tick_id >= n.first_tick
        order by l.tick_id
    ) t;
    perform pgque.keep_tick_history((1 - v_half)::smallint);
    update pgque.log_rotation r set is_copied = true where r.log_name = 'tick';
    return 1;
exception
    when lock_not_available then
        return 0;
end;
$$;

-- Copies the ticks and switches to the copy. Readers never wait for it. Returns 1 when it switched;
-- otherwise 0, even if a copy waits for the next call because the lock was not available.
-- locks: those of maint_copy_ticks; tick_log against tickers and registrations. writes: tick_log,
-- history, log, log_rotation.
create or replace function pgque.maint_compact_ticks()
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp set lock_timeout = '10ms'
as $$
declare
    v_other smallint;
begin
    perform pgque.maint_copy_ticks();  -- which stays if the switch has to wait
    begin
        perform from pgque.log_rotation r
        where r.log_name = 'tick' and r.is_copied
        for update skip locked;
        if not found then
            return 0;
        end if;
        v_other := (select 1 - l.half from pgque.log l where l.log_name = 'tick');

        perform pgque.commit_locally();
        perform pgque.set_lock_wait();
        lock table only pgque.tick_log in exclusive mode;
        -- Adds the ticks that came since the copy, and earlier ones that a registration needs again.
        insert into pgque.tick_log
        select t.tick_queue, t.tick_id, t.tick_time, t.tick_snapshot, t.tick_event_seq, v_other,
               t.left_some
        from (select n.queue_id, n.first_tick,
                     (select min(c.tick_id) from pgque.tick_log c
                      where c.half = v_other and c.tick_queue = n.queue_id) as first_copied,
                     (select max(c.tick_id) from pgque.tick_log c
                      where c.half = v_other and c.tick_queue = n.queue_id) as last_copied
              from pgque.needed_tick n offset 0) q
        cross join lateral (
            select l.* from pgque.tick l
            where l.tick_queue = q.queue_id
              and l.tick_id >= coalesce(q.last_copied + 1, q.first_tick)
            union all
            select l.* from pgque.tick l
            where l.tick_queue = q.queue_id
              and l.tick_id >= q.first_tick and l.tick_id < q.first_copied
        ) t;
        update pgque.log l set half = 1 - l.half, switched_by = pg_current_xact_id()
        where l.log_name = 'tick';
        update pgque.log_rotation r set is_copied = false, rotated_at = clock_timestamp()
        where r.log_name = 'tick';
    exception
        when lock_not_available then
            return 0;
    end;
    return 1;
end;
$$;
