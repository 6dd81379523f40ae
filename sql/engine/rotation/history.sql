-- Saves to the history a part of the unneeded ticks that a compaction does not copy:
-- the last tick of each minute in which events came, and a queue's first tick, to count
-- from.
-- locks: held by the caller. writes: history.
create or replace function pgque.keep_tick_history(i_half smallint)
returns void
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
begin
    with copied as materialized (  -- or the planner looks for the first one at each tick
        select q.queue_id,
               (select min(c.tick_id) from pgque.tick_log c
                where c.half = i_half and c.tick_queue = q.queue_id) as first_copied
        from pgque.queue q
    ), dropped as materialized (
        select t.tick_queue as queue_id, t.tick_time, t.tick_event_seq as event_seq
        from copied q
        join pgque.tick t on t.tick_queue = q.queue_id and t.tick_id < q.first_copied
    ), kept as (
        select d.queue_id, last_kept.event_seq
        from (select distinct queue_id from dropped) d
        left join lateral (
            select h.event_seq
            from pgque.history h
            where h.queue_id = d.queue_id and h.event_seq is not null
            order by h.counted_at desc
            limit 1
        ) last_kept on true
    ), point as (
        select d.queue_id, max(d.tick_time) as tick_time, max(d.event_seq) as event_seq
        from dropped d
        group by d.queue_id, date_trunc('minute', d.tick_time)
        union all
        select d.queue_id, min(d.tick_time), min(d.event_seq)
        from dropped d
        join kept k on k.queue_id = d.queue_id and k.event_seq is null
        group by d.queue_id
    )
    insert into pgque.history (queue_id, counted_at, event_seq)
    select p.queue_id, p.tick_time, p.event_seq
    from (
        select point.*, lag(point.event_seq) over (
                   partition by point.queue_id order by point.event_seq, point.tick_time) as before
        from point
    ) p
    join kept k on k.queue_id = p.queue_id
    where p.event_seq > greatest(p.before, k.event_seq, -1)
    order by p.tick_time;
end;
$$;

-- Adds up the counters to one row per consumer and one row per queue for its ended registrations.
-- Retries and dead letters go to the history by minute, from which rows that are older than a day are
-- deleted. Returns how many counters it removed.
-- locks: the rows it deletes. writes: counter_log, history, log_rotation.
create or replace function pgque.maint_compact_counters()
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp set lock_timeout = '10ms'
as $$
declare
    v_removed integer;
begin
    delete from pgque.history h where h.counted_at < clock_timestamp() - interval '1 day';
    if (select count(*) from pgque.counter_log)
       < 1000 + 2 * ((select count(*) from pgque.subscription_base)
                     + (select count(*) from pgque.queue)) then
        return 0;
    end if;
    with gone as (
        delete from pgque.counter_log l returning l.*
    ), counted as (
        select g.* from gone g join pgque.queue q on q.queue_id = g.queue_id
    ), kept as (
        insert into pgque.counter_log (queue_id, sub_id, counted_at, acked, nacked, dead_lettered)
        select c.queue_id, s.sub_id, 'epoch', sum(c.acked), sum(c.nacked), sum(c.dead_lettered)
        from counted c
        left join pgque.subscription_base s on s.sub_id = c.sub_id
        group by c.queue_id, s.sub_id
        returning 1
    ), noted as (
        insert into pgque.history (queue_id, counted_at, retries, dead_letters)
        select c.queue_id, date_trunc('minute', c.counted_at), sum(c.nacked), sum(c.dead_lettered)
        from counted c
        where c.counted_at > 'epoch' and c.nacked + c.dead_lettered > 0
        group by 1, 2
    )
    select (select count(*) from gone) - (select count(*) from kept) into v_removed;
    update pgque.log_rotation r set rotated_at = clock_timestamp() where r.log_name = 'counter';
    return v_removed;
exception
    when lock_not_available then  -- an upgrade has the tables
        return 0;
end;
$$;
