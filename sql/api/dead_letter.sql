-- Returns a queue's newest dead letters; with a limit of null, all of them. Returns none if the queue
-- does not exist.
create or replace function pgque.dlq_inspect(i_queue_name text, i_limit_count integer default 100)
returns setof pgque.dead_letter
language plpgsql stable security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_queue pgque.queue := pgque.look_for_queue(i_queue_name);
begin
    if i_limit_count < 0 then
        perform pgque.refuse_value('a list cannot have %s dead letters', i_limit_count::text,
                                   'Ask for 0 or more, or null for all.');
    end if;
    return query
    select d.*
    from pgque.dead_letter d
    where d.dl_queue_id = v_queue.queue_id
    order by d.dl_time desc, d.dl_id desc
    limit i_limit_count;
end;
$$;

-- Returns the number of a queue's dead letters by consumer and reason, with the time of the oldest and
-- the highest id of each.
create or replace function pgque.dlq_summary(
    i_queue_name text,
    out consumer_name text, out reason text, out dead_letters bigint, out oldest timestamptz,
    out max_id bigint)
returns setof record
language plpgsql stable security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_queue pgque.queue := pgque.find_queue(i_queue_name);  -- not in the join: it could be skipped
begin
    return query
    select c.co_name, d.dl_reason, count(*), min(d.dl_time), max(d.dl_id)
    from pgque.dead_letter d
    join pgque.consumer c on c.co_id = d.dl_consumer_id
    where d.dl_queue_id = v_queue.queue_id
    group by c.co_name, d.dl_reason
    order by count(*) desc, c.co_name, d.dl_reason;
end;
$$;

-- Makes an event a dead letter, for tools that have the event already: its fields are stored as given.
-- Refused if the batch is leased. In a subconsumer's batch, the dead letter belongs to the main
-- consumer. Returns 1, also if the event is a dead letter already.
-- locks: none. writes: dead_letter.
create or replace function pgque.event_dead(
    i_batch_id bigint, i_event_id bigint, i_reason text, i_ev_time timestamptz, i_ev_txid xid8,
    i_ev_retry integer, i_ev_type text, i_ev_data text, i_ev_extra1 text default null,
    i_ev_extra2 text default null, i_ev_extra3 text default null, i_ev_extra4 text default null)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_sub       pgque.subscription := pgque.find_batch(i_batch_id);
    v_consumer  integer;
begin
    if i_event_id is null or i_ev_time is null then
        perform pgque.refuse_value(
            'a dead letter needs the id and the time of its event', null,
            'Pass ev_id and ev_time as returned by pgque.get_batch_events(batch_id).');
    end if;
    perform pgque.check_may_settle(v_sub, null, null);
    select b.sub_consumer into v_consumer
    from pgque.subscription_base b
    where b.sub_id = coalesce(v_sub.sub_main, v_sub.sub_id);
    insert into pgque.dead_letter (
        dl_queue_id, dl_consumer_id, dl_reason, ev_id, ev_time, ev_txid, ev_retry, ev_type, ev_data,
        ev_extra1, ev_extra2, ev_extra3, ev_extra4)
    values (
        v_sub.sub_queue, v_consumer, i_reason, i_event_id, i_ev_time, i_ev_txid, i_ev_retry,
        i_ev_type, i_ev_data, i_ev_extra1, i_ev_extra2, i_ev_extra3, i_ev_extra4)
    on conflict do nothing;
    return 1;
end;
$$;

-- Makes all events of a leased batch dead letters and acks it, for a batch that failed too often.
-- Returns the number of events.
-- locks: those of ack_batch. writes: dead_letter, position_log.
create or replace function pgque.give_up_batch(
    i_batch_id bigint, i_reason text, i_owner text, i_epoch bigint)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_ids bigint[];
begin
    v_ids := array(select e.ev_id from pgque.get_batch_events(i_batch_id) e);
    perform pgque.dead_letter_batch(i_batch_id, v_ids, i_reason, i_owner, i_epoch);
    perform pgque.ack_batch(i_batch_id, i_owner, i_epoch);
    return cardinality(v_ids);
end;
$$;

-- Returns how a consumer handled events before an open batch: how many events it finished, at most i_events,
-- and how many of its newest i_events event ids are dead letters or wait for a retry. All slots of a
-- partitioned consumer count together: an event is finished when each slot has passed it.
create or replace function pgque.finished_before(
    i_batch_id bigint, i_events integer, out finished integer, out failed integer)
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp set jit = off
as $$
declare
    v_sub        pgque.subscription := pgque.find_batch(i_batch_id);
    v_subs       integer[];
    v_consumers  integer[];
    v_last       bigint;
begin
    if i_events is null or i_events < 1 then
        perform pgque.refuse_value('a history cannot have %s events', i_events::text,
                                   'Ask for 1 or more.');
    end if;
    perform pgque.check_logs_visible();
    select array_agg(p.sub_id), array_agg(b.sub_consumer), max(p.tick_event_seq),
           least(i_events, min(
               p.tick_event_seq
               + (select coalesce(sum(c.acked), 0) from pgque.counter_log c
                  where c.sub_id = p.sub_id)
               - (select coalesce(sum(o.batch_events), 0) from pgque.consumer_progress o
                  where o.sub_main = p.sub_id)))
    into v_subs, v_consumers, v_last, finished
    from pgque.subscription_base b
    join pgque.consumer_progress p on p.sub_id = b.sub_id
    where b.sub_id = coalesce(v_sub.sub_main, v_sub.sub_id)
       or b.sub_id in (select other.sub_id
                       from pgque.partition_slot_base own
                       join pgque.partition_slot_base other
                         on other.queue_id = own.queue_id and other.co_name = own.co_name
                       where own.sub_id = v_sub.sub_id);
    failed := (select count(*) from pgque.dead_letter d
               where d.dl_queue_id = v_sub.sub_queue
                 and d.dl_consumer_id = any (v_consumers)
                 and d.ev_id > v_last - i_events and d.ev_id <= v_last)
            + (select count(*) from pgque.retry_queue r
               where r.ev_owner = any (v_subs)
                 and r.ev_id > v_last - i_events and r.ev_id <= v_last);
end;
$$;

-- Deletes a queue's dead letters that are older than an interval. Returns their number. Returns 0 if
-- the queue does not exist.
-- locks: the dead letters. writes: dead_letter.
create or replace function pgque.dlq_purge(
    i_queue_name text, i_older_than interval default '30 days')
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_queue   pgque.queue := pgque.look_for_queue(i_queue_name);
    v_purged  integer;
begin
    if i_older_than is null or i_older_than < '0' then
        perform pgque.refuse_value('cannot purge dead letters older than %s', i_older_than::text,
                                   'Give an interval of 0 or more; 0 purges all.');
    end if;
    delete from pgque.dead_letter d
    where d.dl_queue_id = v_queue.queue_id
      and d.dl_time <= clock_timestamp() - i_older_than;
    get diagnostics v_purged = row_count;
    return v_purged;
end;
$$;
