-- The views behind statistics, health and metrics: each queue with its last tick and the last assigned
-- event id, and each subscription with its position. Every value is one index lookup; "limit 1" keeps
-- the planner from joining whole tables by a tick id that all queues have. Counts are differences of
-- event ids, so they are upper estimates if senders rolled back.
create or replace view pgque.queue_progress as
select q.queue_id, q.queue_name, q.queue_cur_table, q.queue_rotation_period, q.queue_switch_time,
       q.queue_switch_step2, q.queue_external_ticker, q.queue_ticker_paused, q.queue_ticker_max_lag,
       q.queue_ticker_idle_period, q.queue_disable_insert,
       newest.tick_id, newest.tick_time, newest.tick_event_seq, newest.tick_snapshot,
       coalesce(pg_sequence_last_value(q.queue_seq), 0) as last_event_id
from pgque.queue q
left join lateral (
    select * from pgque.tick t where t.tick_queue = q.queue_id order by t.tick_id desc limit 1
) newest on true;

create or replace view pgque.consumer_progress as
select s.sub_id, s.sub_queue, s.sub_main, s.sub_active, s.sub_last_tick, s.sub_batch,
       s.sub_next_tick, s.lease_owner, s.lease_until, c.co_name, t.tick_time, t.tick_event_seq,
       newest.tick_id as newest_tick, newest.tick_event_seq as newest_event_seq, s.lease_epoch,
       batch_end.tick_event_seq - t.tick_event_seq as batch_events,
       case when s.sub_main is null then newest.tick_event_seq else batch_end.tick_event_seq end
       - t.tick_event_seq as pending_events,
       (select min(l.sub_active) from pgque.position_log l
        where l.sub_batch = s.sub_batch) as opened_at,  -- as far as compaction has left it
       t.tick_snapshot
from pgque.subscription s
join pgque.consumer c on c.co_id = s.sub_consumer
left join lateral (
    select * from pgque.tick x
    where x.tick_queue = s.sub_queue and x.tick_id = s.sub_last_tick limit 1
) t on true
left join lateral (
    select * from pgque.tick x
    where x.tick_queue = s.sub_queue and x.tick_id = s.sub_next_tick limit 1
) batch_end on true
left join lateral (
    select n.tick_id, n.tick_event_seq from pgque.tick n
    where n.tick_queue = s.sub_queue order by n.tick_id desc limit 1
) newest on true;
