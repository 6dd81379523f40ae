-- Makes events of an open batch dead letters at once and takes them out of the batch, which stays open:
-- later reads, also of later attempts, no longer return them. Ends the lease of an earlier attempt,
-- which can no longer ack. Refused while a lease is live. A consumer that works without leases has to
-- be stopped first. Returns how many events were taken out by this call.
-- locks: waits for a concurrent move of the same consumer. writes: position_log, dead_letter,
-- set_aside.
create or replace function pgque.set_events_aside(
    i_batch_id bigint, i_event_ids bigint[], i_reason text)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_sub     pgque.subscription;
    v_before  bigint[];
    v_ids     bigint[];
    v_events  integer;
begin
    perform pgque.check_reasons(i_event_ids, array[i_reason]);
    loop
        v_sub := pgque.find_batch(i_batch_id);
        perform pgque.refuse_slot(v_sub, true);
        perform pgque.check_may_settle(v_sub, null, null);
        v_sub.lease_owner := null;
        v_sub.lease_until := null;
        v_sub.lease_epoch := v_sub.lease_epoch + 1;
        exit when pgque.append_position(v_sub);
    end loop;

    v_before := array(select unnest(a.ev_ids)
                      from pgque.set_aside a
                      where a.sub_id = v_sub.sub_id and a.batch_id = i_batch_id);
    v_ids := array(select distinct i.id from unnest(i_event_ids) i (id)
                   where i.id <> all (v_before));
    v_events := pgque.settle_events(i_batch_id, v_ids, null, 0, array[i_reason], null);
    insert into pgque.set_aside (sub_id, batch_id, epoch, ev_ids)
    values (v_sub.sub_id, i_batch_id, v_sub.lease_epoch, v_before || v_ids)
    on conflict (sub_id) do update
    set batch_id = excluded.batch_id, epoch = excluded.epoch, ev_ids = excluded.ev_ids;
    return v_events;
end;
$$;

-- Returns the epoch at which events of an open batch were last set aside; null if none were. A
-- scheduler counts the batch's attempts from there, and runs the batch even without other events,
-- because an earlier attempt may have stored something.
create or replace function pgque.set_aside_epoch(i_batch_id bigint)
returns bigint
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return (select a.epoch
    from pgque.find_batch(i_batch_id) s
    left join pgque.set_aside a on a.sub_id = s.sub_id and a.batch_id = i_batch_id);
end;
$$;
