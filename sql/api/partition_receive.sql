-- How a worker reads a slot. A page is what one call of receive_partitioned returns; the slot's
-- position records it:
--   held_at    when the page was chosen, if it consists of held events; null if of the open batch
--   page_from  the last event of the open batch that was acked
--   page_to    the last event of the page; the highest number if nothing comes after it
-- open_page chooses a page, receive_partitioned reads it, finish_page moves the slot past it. The
-- functions after these build the SELECT of its events.

-- Returns the next page of a slot to the worker that holds its lease, and renews the lease. The
-- page has at most i_max events in order of msg_id. Held events that are due come first, in
-- separate pages without a batch id, then the events of the open or next batch. Until the page is
-- acked, the next call begins with the same event. Batches without events of the slot are finished.
-- locks: waits for a concurrent move of the same slot. writes: position_log, partition_held.
create or replace function pgque.receive_partitioned(
    i_queue text, i_consumer text, i_slot integer, i_n integer, i_worker text,
    i_max integer default 100)
returns setof pgque.message
language plpgsql security definer
set jit = off
as $$
declare
    v_slot  pgque.subscription;
    v_page  text;
    v_rows  bigint;
begin
    if i_max is null or i_max < 1 then
        perform pgque.refuse_value('no page has %s messages', i_max::text, 'Ask for 1 or more.');
    end if;
    loop
        v_slot := pgque.open_page(i_queue, i_consumer, i_slot, i_n, i_worker, i_max);
        exit when v_slot.page_to is null;
        v_page := format('select * from %s order by e.ev_id limit %s', case
            when v_slot.held_at is null then pgque.slot_rows(v_slot)
            else format('pgque.due_events(%s, %L) e', v_slot.sub_id, v_slot.held_at) end, i_max);
        return query execute format(  -- quoted: made above
            'select ev_id, $1, ev_type, ev_data, ev_retry, ev_time, '
            'ev_extra1, ev_extra2, ev_extra3, ev_extra4 from (%s) page', v_page)
        using case when v_slot.held_at is null then v_slot.sub_batch end;
        get diagnostics v_rows = row_count;
        if v_rows = i_max then
            -- A full page ends at its last event, any other page at the end of the batch.
            execute format('select max(ev_id) from (%s) page', v_page)  -- quoted: made above
            into v_slot.page_to;
            perform pgque.append_position(v_slot);
        end if;
        exit when v_rows > 0;
        perform pgque.finish_page(v_slot);
    end loop;
end;
$$;

-- Acks the page that receive_partitioned returned last, and renews the lease. Returns 1, or 0 if
-- there is no such page.
-- locks: waits for a concurrent move of the same slot. writes: position_log, partition_held.
create or replace function pgque.ack_partitioned(
    i_queue text, i_consumer text, i_slot integer, i_n integer, i_worker text)
returns integer
language plpgsql security definer
as $$
declare
    v_slot pgque.subscription;
begin
    loop
        v_slot := pgque.find_leased_slot(i_queue, i_consumer, i_slot, i_n, i_worker);
        if v_slot.page_to is null then
            return 0;
        end if;
        exit when pgque.finish_page(v_slot);
    end loop;
    return 1;
end;
$$;

-- Checks and renews the lease, and chooses the next page: held events that are due, else the rest of
-- the open batch, else the next batch, which spans enough ticks for about i_max events. Expired held
-- events are dropped, so that later events of their keys are delivered. If there is nothing to
-- deliver, page_to is null, and the lease is only renewed after half of its time.
-- locks: waits for a concurrent move of the same slot. writes: position_log, partition_held.
create or replace function pgque.open_page(
    i_queue text, i_consumer text, i_slot integer, i_n integer, i_worker text, i_max integer)
returns pgque.subscription
language plpgsql
as $$
declare
    v_slot      pgque.subscription;
    v_now       timestamptz;
    v_cutoff    timestamptz;
    v_had_page  boolean;
begin
    loop
        v_slot := pgque.find_leased_slot(i_queue, i_consumer, i_slot, i_n, i_worker);
        v_now := clock_timestamp();
        v_cutoff := pgque.event_cutoff(v_slot.sub_queue);
        delete from pgque.partition_held h
        where h.sub_id = v_slot.sub_id and h.ev_time < v_cutoff;

        v_had_page := v_slot.page_to is not null;
        v_slot.page_to := 9223372036854775807;
        v_slot.held_at := case when exists (select from pgque.due_events(v_slot.sub_id, v_now))
                               then v_now end;
        if v_slot.held_at is null and v_slot.sub_batch is null then
            v_slot.sub_next_tick := (pgque.find_next_tick(
                v_slot.sub_queue, pgque.find_tick(v_slot.sub_queue, v_slot.sub_last_tick),
                null, null, null, least(i_max::bigint * i_n, 2147483647)::integer)).tick_id;
            if v_slot.sub_next_tick is not null then
                v_slot.sub_batch := pgque.next_batch_id();
                v_slot.event_cutoff := v_cutoff;
            else
                v_slot.page_to := null;
                if not v_had_page and v_slot.lease_until > v_now + v_slot.lease_ttl / 2 then
                    return v_slot;
                end if;
            end if;
        end if;
        v_slot.lease_until := v_now + v_slot.lease_ttl;
        exit when pgque.append_position(v_slot);
    end loop;
    v_slot.pos_seq := v_slot.pos_seq + 1;
    return v_slot;
end;
$$;

-- Moves a slot past its page. Held events of the page are deleted, unless they failed again. Events
-- of a batch that wait for a failed event become held events, and after its last page the batch is
-- finished. Returns false if the slot was moved meanwhile.
-- locks: waits for a concurrent move of the same slot. writes: position_log, partition_held.
create or replace function pgque.finish_page(i_slot pgque.subscription)
returns boolean
language plpgsql
as $$
declare
    v_next     pgque.subscription := i_slot;
    v_waiting  text;
begin
    v_next.page_to := null;
    v_next.held_at := null;
    v_next.lease_until := clock_timestamp() + i_slot.lease_ttl;
    if i_slot.held_at is not null then
        if not pgque.append_position(v_next) then
            return false;
        end if;
        delete from pgque.partition_held h
        using pgque.due_events(i_slot.sub_id, i_slot.held_at) d
        where h.sub_id = d.sub_id and h.ev_id = d.ev_id and d.ev_id <= i_slot.page_to;
        return true;
    end if;

    if pgque.has_held_events(i_slot.sub_id) then
        v_waiting := pgque.tick_select(i_slot.sub_batch, '*');  -- while the batch is open
    end if;
    v_next.page_from := i_slot.page_to;
    if i_slot.page_to = 9223372036854775807 then
        v_next.sub_last_tick := i_slot.sub_next_tick;
        v_next.sub_next_tick := null;
        v_next.sub_batch := null;
        v_next.page_from := null;
    end if;
    if not pgque.append_position(v_next) then
        return false;
    end if;
    if v_waiting is not null then
        execute format(  -- quoted: made by tick_select and earlier_held
            'insert into pgque.partition_held (sub_id, ev_id, ev_time, ev_txid, ev_retry, ev_type, '
            '  ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4) '
            'select $1, ev_id, ev_time, ev_txid, ev_retry, ev_type, '
            '  ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4 '
            'from (%s) e where ev_id <= $2 and exists %s on conflict do nothing',
            v_waiting, pgque.earlier_held(i_slot.sub_id))
        using i_slot.sub_id, i_slot.page_to;
    end if;
    return true;
end;
$$;

-- Returns the slot of a key among n slots: its hash modulo n, made positive; events without a key
-- are in slot 0. Collation "C" hashes the bytes, so the result is the same in every database.
-- hashtextextended does not change, because hash partitioning uses it. The function is in SQL so
-- that it is inlined into the statement that calls it.
create or replace function pgque.slot_of_key(i_key text, i_n integer)
returns integer
language sql immutable
as $$
    select coalesce((pg_catalog.hashtextextended(i_key collate pg_catalog."C", 0)
                     operator(pg_catalog.%) i_n operator(pg_catalog.+) i_n)
                    operator(pg_catalog.%) i_n, 0)::pg_catalog.int4
$$;

-- Builds the query that returns a row if the event of the query around it is a held event, or waits
-- or would wait for a held event of its key. It looks only at the first held event of each key:
-- these are few, even if many events wait.
create or replace function pgque.earlier_held(i_sub_id integer)
returns text
language plpgsql immutable
as $$
begin
    return format('(select from (select k.ev_extra1 as held_key, min(k.ev_id) as first_id '
                  'from pgque.partition_held k where k.sub_id = %s group by k.ev_extra1) h '
                  'where h.held_key = ev_extra1 and h.first_id <= ev_id)', i_sub_id);
end;
$$;

-- Returns the held events that may be delivered at a time: neither they nor an earlier held event
-- of their key are scheduled for later.
create or replace function pgque.due_events(i_sub_id integer, i_at timestamptz)
returns setof pgque.partition_held
language plpgsql stable
as $$
begin
    return query
    select h.*
    from pgque.partition_held h
    where h.sub_id = i_sub_id
      and not exists (
          select from pgque.partition_held earlier
          where earlier.sub_id = i_sub_id and earlier.ev_extra1 = h.ev_extra1
            and earlier.ev_id <= h.ev_id and earlier.retry_after > i_at);
end;
$$;
