-- Schedules an event, given in full, as a retry of a consumer. This is for consumers that store
-- events themselves. Without an id, the event gets a new one. Returns its id; an event that was
-- scheduled before stays unchanged.
-- locks: none. writes: retry_queue.
create or replace function pgque.event_retry_raw(
    x_queue text, x_consumer text, x_retry_after timestamptz,
    x_ev_id bigint, x_ev_time timestamptz, x_ev_retry integer, x_ev_type text, x_ev_data text,
    x_ev_extra1 text, x_ev_extra2 text, x_ev_extra3 text, x_ev_extra4 text)
returns bigint
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_sub    pgque.subscription := pgque.find_subscription(x_queue, x_consumer);
    v_queue  pgque.queue := pgque.find_queue(x_queue);
    v_id     bigint := x_ev_id;
begin
    if v_sub.sub_role = 'coop_member' then
        perform pgque.refuse_cooperative(v_sub, x_queue, x_consumer);
    end if;
    if x_retry_after is null or x_ev_retry < 0 then
        raise exception 'retry number % cannot be scheduled at %', coalesce(x_ev_retry::text, 'null'),
                        coalesce(x_retry_after::text, 'null')
            using errcode = 'PQ005',
                  hint = 'Give the time of the next delivery, and 0 or more as the retries so far.';
    end if;

    if v_id is null then
        v_id := nextval(v_queue.queue_seq);
    end if;
    insert into pgque.retry_queue (
        ev_retry_after, ev_queue, ev_id, ev_time, ev_owner, ev_retry, ev_type, ev_data,
        ev_extra1, ev_extra2, ev_extra3, ev_extra4)
    values (
        x_retry_after, v_sub.sub_queue, v_id, coalesce(x_ev_time, now()), v_sub.sub_id, x_ev_retry,
        x_ev_type, x_ev_data, x_ev_extra1, x_ev_extra2, x_ev_extra3, x_ev_extra4)
    on conflict do nothing;
    return v_id;
end;
$$;

-- Schedules all events of an open batch for another delivery, a number of seconds from now, regardless
-- of their retry counts. Returns how many it scheduled; events that were scheduled before stay
-- unchanged. The batch stays open. Refused under a live lease: its owner calls nack_batch.
-- locks: none. writes: retry_queue.
create or replace function pgque.batch_retry(i_batch_id bigint, i_retry_seconds integer)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_sub  pgque.subscription := pgque.find_batch(i_batch_id);
    v_ids  bigint[];
begin
    if i_retry_seconds is null or i_retry_seconds < 0 then
        perform pgque.refuse_value('a retry cannot wait %s seconds', i_retry_seconds::text,
                                   'Give 0 or more.');
    end if;
    perform pgque.check_may_settle(v_sub, null, null);
    v_ids := array(
        select e.ev_id
        from pgque.get_batch_events(i_batch_id) e
        join pgque.subscription_base s on s.sub_id = coalesce(v_sub.sub_main, v_sub.sub_id)
        where not exists (select from pgque.retry_queue r
                          where r.ev_owner = s.sub_id and r.ev_id = e.ev_id)
          and not exists (select from pgque.dead_letter d
                          where d.dl_queue_id = s.sub_queue and d.dl_consumer_id = s.sub_consumer
                            and d.ev_id = e.ev_id));
    perform pgque.settle_events(
        i_batch_id, v_ids, clock_timestamp() + make_interval(secs => i_retry_seconds), null,
        array[null], null);
    return cardinality(v_ids);
end;
$$;
