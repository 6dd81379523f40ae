-- How a slot is read by batches, with the functions of normal consumers: claim_batch takes the name
-- of the slot, consumer#slot/n, and ack_batch, renew_batch, release_batch and the readers take the
-- batch. A batch is one of two kinds:
--   events between two ticks, without those that wait for a held event of their key;
--   held events that were due at held_at, up to page_to: its two ticks are the same one.
-- Each batch of held events comes before later events of their keys. While lease_ttl is set, the
-- slot is handed out in pages (partition_receive.sql) instead, and its batch is not settled here.

-- Prepares the claim of a slot's batch: without an open batch it drops expired held events, and
-- chooses the held events that are due, if there are any, and about i_max_count of them. What a page
-- left in an open batch is reset; its events up to page_from are acked.
-- locks: those of drop_expired_held. writes: the same; the caller writes the position.
create or replace function pgque.begin_slot_batch(i_sub pgque.subscription, i_max_count integer)
returns pgque.subscription
language plpgsql
as $$
declare
    v_now timestamptz := clock_timestamp();
begin
    i_sub.lease_ttl := null;
    if i_sub.sub_batch is null then
        i_sub := pgque.drop_expired_held(i_sub);
        i_sub.page_to := (select max(d.ev_id)
                          from (select * from pgque.due_events(i_sub.sub_id, v_now)
                                order by ev_id limit i_max_count) d);
        if i_sub.page_to is not null then
            i_sub.held_at := v_now;
            i_sub.sub_next_tick := i_sub.sub_last_tick;
        end if;
    elsif i_sub.sub_next_tick <> i_sub.sub_last_tick then
        i_sub.held_at := null;
        i_sub.page_to := null;
    end if;
    return i_sub;
end;
$$;

-- Drops the expired held events of a slot without an open batch, so that later events of their keys
-- are delivered. It moves the slot first: a batch that another session opens meanwhile must not grow
-- by the events behind them. Returns the position after the move, or the given one if there was none.
-- locks: waits for a concurrent move of the same slot. writes: position_log, partition_held.
create or replace function pgque.drop_expired_held(i_sub pgque.subscription)
returns pgque.subscription
language plpgsql
as $$
declare
    v_cutoff  timestamptz := pgque.event_cutoff(i_sub.sub_queue);
begin
    if pgque.has_expired_held(i_sub.sub_id, v_cutoff) and pgque.append_position(i_sub) then
        delete from pgque.partition_held h
        where h.sub_id = i_sub.sub_id and h.ev_time < v_cutoff;
        i_sub.pos_seq := i_sub.pos_seq + 1;
    end if;
    return i_sub;
end;
$$;

-- Says whether a slot has held events from before a time.
create or replace function pgque.has_expired_held(i_sub_id integer, i_cutoff timestamptz)
returns boolean
language plpgsql
as $$
begin
    return exists (select from pgque.partition_held h
                   where h.sub_id = i_sub_id and h.ev_time < i_cutoff);
end;
$$;

-- Finishes the batch of a slot and releases its lease. Held events of the batch are deleted; events
-- that wait for a held event become held events. Returns false if the slot was moved meanwhile.
-- locks: those of finish_page. writes: position_log, partition_held.
create or replace function pgque.close_slot_batch(i_sub pgque.subscription)
returns boolean
language plpgsql
as $$
begin
    if i_sub.held_at is null then
        i_sub.page_to := 9223372036854775807;
    else
        i_sub.sub_batch := null;
        i_sub.sub_next_tick := null;
    end if;
    return pgque.finish_page(i_sub);
end;
$$;

-- Returns the rows of a slot's batch, as they stand after FROM.
create or replace function pgque.slot_rows(i_sub pgque.subscription)
returns text
language plpgsql
as $$
begin
    if i_sub.sub_next_tick = i_sub.sub_last_tick then
        return format('pgque.held_batch_events(%s) e', i_sub.sub_batch);
    end if;
    return format(
        '(%s) e%s', pgque.tick_select(i_sub.sub_batch, '*'),
        case when pgque.has_held_events(i_sub.sub_id)
             then format(' where not exists %s', pgque.earlier_held(i_sub.sub_id)) end);
end;
$$;

-- Returns the condition of the keys of a slot, and of the part of its batch that is not acked.
create or replace function pgque.slot_condition(i_sub pgque.subscription)
returns text
language plpgsql
as $$
begin
    return (select format('pgque.slot_of_key(ev_extra1, %s) = %s%s', b.n, b.slot,
                          ' and ev_id > ' || i_sub.page_from)
            from pgque.slot b
            where b.sub_id = i_sub.sub_id);
end;
$$;

-- Returns the events of an open batch of held events.
create or replace function pgque.held_batch_events(i_batch_id bigint)
returns setof pgque.event_template
language plpgsql security definer
as $$
declare
    v_sub pgque.subscription := pgque.find_batch(i_batch_id);
begin
    return query
    select d.ev_id, d.ev_time, d.ev_txid, null::integer, d.ev_retry, d.ev_type, d.ev_data,
           d.ev_extra1, d.ev_extra2, d.ev_extra3, d.ev_extra4
    from pgque.due_events(v_sub.sub_id, v_sub.held_at) d
    where d.ev_id <= v_sub.page_to
      and d.ev_time >= coalesce(v_sub.event_cutoff, '-infinity');
end;
$$;

-- Plans the read of a batch of held events, as one slice. None if it is empty.
create or replace function pgque.plan_held(
    i_batch_id bigint, out slice_nr integer, out slice_sql text, out batch_events bigint,
    out slice_from text, out set_columns text[], out payload_bytes bigint, out batch_bytes bigint,
    out oldest_event timestamptz, out newest_event timestamptz)
returns setof record
language plpgsql
as $$
declare
    v_rows text := format('pgque.held_batch_events(%s) e', i_batch_id);
begin
    return query
    select 1, concat('select ev_id, ev_time, ev_txid::text::bigint as ev_txid, ev_retry, ev_type, '
                     'ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4 from ', v_rows),
           count(*), v_rows, '{ev_retry,ev_extra1,ev_extra2,ev_extra3,ev_extra4}'::text[],
           coalesce(sum(octet_length(e.ev_data)), 0)::bigint,
           sum(octet_length(concat(e.ev_type, e.ev_data, e.ev_extra1, e.ev_extra2, e.ev_extra3,
                                   e.ev_extra4)))::bigint,
           min(e.ev_time), max(e.ev_time)
    from pgque.held_batch_events(i_batch_id) e
    having count(*) > 0;
end;
$$;

-- Says whether a slot has held events.
create or replace function pgque.has_held_events(i_sub_id integer)
returns boolean
language plpgsql
as $$
begin
    return exists (select from pgque.partition_held h where h.sub_id = i_sub_id);
end;
$$;

-- Raises the error for a slot that is handed out in pages: a page is not the whole batch.
create or replace function pgque.refuse_pages(i_sub pgque.subscription)
returns void
language plpgsql
as $$
begin
    if i_sub.lease_ttl is not null then
        perform pgque.refuse_slot(i_sub);
    end if;
end;
$$;
