-- PgQ's tables as views, with its columns and types.
create or replace view pgq.queue as
select q.queue_id,
       q.queue_name,
       q.queue_ntables,
       q.queue_cur_table,
       q.queue_rotation_period,
       q.queue_switch_step1,
       q.queue_switch_step2,
       q.queue_switch_time,
       q.queue_external_ticker,
       q.queue_disable_insert,
       q.queue_ticker_paused,
       q.queue_ticker_max_count,
       q.queue_ticker_max_lag,
       q.queue_ticker_idle_period,
       x.per_tx_limit as queue_per_tx_limit,
       format('pgque.event_%s', q.queue_id) as queue_data_pfx,
       q.queue_event_seq,
       format('pgq.event_%s_tick_seq', q.queue_id) as queue_tick_seq,
       null::text[] as queue_extra_maint
from pgque.queue q
left join pgq.queue_extra x on x.queue_id = q.queue_id;

-- For version 0.3, in which event tables had views here, and pgqd called the functions of
-- queue_extra_maint. These calls must not end unnoticed.
do $$
declare
    v_queue_id integer;
begin
    if to_regclass('pgq.maint_function') is not null then
        if exists (select from pgq.queue_extra x where x.extra_maint is not null) then
            raise exception using
                errcode = 'PQ005',
                message = 'queues have functions in queue_extra_maint, which this version does not call',
                hint = 'Schedule them otherwise, for example by pg_cron. Then run: '
                       'update pgq.queue set queue_extra_maint = null; and install again.';
        end if;
        alter table pgq.queue_extra drop column extra_maint;
        drop table pgq.maint_function;
        drop function pgq.allow_extra_maint(text);
        drop function pgq.forbid_extra_maint(text);
        drop function pgq.check_extra_maint(text[]);
        for v_queue_id in select v.queue_id from pgq.event_view v loop
            execute format(  -- quoted: a number
                'drop view pgq.event_%1$s, pgq.event_%1$s_0, pgq.event_%1$s_1, pgq.event_%1$s_2',
                v_queue_id);
        end loop;
        drop table pgq.event_view;
        drop function pgq.drop_event_views();
        drop function pgq.insert_row();
        drop function pgq.make_event_views(integer);
        drop function pgq.maint();
    end if;
end;
$$;

create or replace view pgq.consumer as
select c.co_id, c.co_name
from pgque.consumer c;

create or replace view pgq.tick as
select t.tick_queue,
       t.tick_id,
       t.tick_time,
       t.tick_snapshot::text::txid_snapshot as tick_snapshot,
       t.tick_event_seq
from pgque.tick t;

-- A subconsumer has the sub_id of its main consumer, as in PgQ: events of retries name it.
create or replace view pgq.subscription as
select coalesce(s.sub_main, s.sub_id) as sub_id,
       s.sub_queue,
       s.sub_consumer,
       s.sub_last_tick,
       s.sub_active,
       s.sub_batch,
       s.sub_next_tick
from pgque.subscription s;

-- Admins delete rows here, which discards the retries, and update ev_retry_after.
create or replace view pgq.retry_queue as
select r.ev_retry_after,
       r.ev_queue,
       r.ev_id,
       r.ev_time,
       r.ev_txid::text::bigint as ev_txid,
       r.ev_owner,
       r.ev_retry,
       r.ev_type,
       r.ev_data,
       r.ev_extra1,
       r.ev_extra2,
       r.ev_extra3,
       r.ev_extra4
from pgque.retry_queue r;

create or replace view pgq.event_template as
select e.ev_id,
       e.ev_time,
       e.ev_txid::text::bigint as ev_txid,
       e.ev_owner,
       e.ev_retry,
       e.ev_type,
       e.ev_data,
       e.ev_extra1,
       e.ev_extra2,
       e.ev_extra3,
       e.ev_extra4
from pgque.event_template e;
