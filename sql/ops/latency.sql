-- Lists the batches whose opening and end are both in the position log, with their consumers. A
-- batch that ended because the consumer was moved is not listed. If another subconsumer took over a
-- dead one's batch, the batch ended for the dead one. Compaction empties the log, so this covers
-- minutes on a busy database and hours on a quiet one.
create or replace view pgque.ended_batch as
select s.sub_queue as queue_id,
       coalesce(s.sub_main, s.sub_id) as sub_id,
       p.sub_batch as batch_id,
       p.opened_at,
       p.ended_at,
       e.tick_time,
       e.tick_event_seq - b.tick_event_seq as events
from (
    select l.sub_id, l.sub_batch, l.sub_last_tick, l.sub_next_tick,
           min(l.sub_active) over (partition by l.sub_id, l.sub_batch) as opened_at,
           lead(l.sub_active) over w as ended_at,
           lead(l.sub_batch) over w as batch_after,
           lead(l.sub_last_tick) over w as tick_after
    from pgque.position_log l
    window w as (partition by l.sub_id order by l.pos_seq)
) p
join pgque.subscription_base s on s.sub_id = p.sub_id
cross join lateral (
    select t.tick_event_seq from pgque.tick t
    where t.tick_queue = s.sub_queue and t.tick_id = p.sub_last_tick limit 1
) b
cross join lateral (
    select t.tick_time, t.tick_event_seq from pgque.tick t
    where t.tick_queue = s.sub_queue and t.tick_id = p.sub_next_tick limit 1
) e
where p.sub_batch is not null
  and p.batch_after is null
  and p.ended_at is not null
  and (s.sub_main is not null or p.tick_after = p.sub_next_tick);

-- Returns percentiles of the time from a batch's last tick to its end, for the consumer's batches
-- that ended in the period, as far as pgque.ended_batch has them; nulls if there are none.
create or replace function pgque.latency_percentiles(
    i_queue_name text, i_consumer_name text, i_period interval)
returns table (p50 interval, p95 interval, p99 interval)
language plpgsql security definer
set jit = off
as $$
declare
    v_sub pgque.subscription := pgque.find_subscription(i_queue_name, i_consumer_name);
begin
    if i_period is null or i_period <= '0' or i_period > '100 years' then
        perform pgque.refuse_value('no latency over %s', i_period::text,
                                   'Give a positive interval, for example ''1 hour''.');
    end if;
    perform pgque.check_logs_visible();
    return query
    select l.p[1], l.p[2], l.p[3]
    from (
        select percentile_cont('{0.5,0.95,0.99}'::double precision[])
               within group (order by b.ended_at - b.tick_time) as p
        from pgque.ended_batch b
        where b.sub_id = v_sub.sub_id
          and b.ended_at >= clock_timestamp() - i_period
    ) l;
end;
$$;
