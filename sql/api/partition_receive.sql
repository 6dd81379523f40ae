-- How a slot is read. Its batches are those of a normal consumer with one more condition, on the hash of
-- the key, and claim_batch takes the slot's name, consumer#slot/n. A worker that claimed the slot with
-- claim_slot gets its batch in pages, which the slot's position records:
--   lease_ttl  set while the slot is read in pages; then ack_batch and the like are refused
--   page_from  the last event of the open batch that was acked
--   page_to    the last event of the page; the highest number if nothing comes after it

-- Returns the next page of a slot to the worker that has its lease, and renews the lease. The page
-- has at most i_max events of the open or next batch, in order of msg_id. Until it is acked, the next
-- call begins with the same event. Batches without events of the slot are finished. If there is no
-- batch, the lease is only renewed after half of its time.
-- locks: waits for a concurrent move of the same slot. writes: position_log.
create or replace function pgque.receive_partitioned(
    i_queue text, i_consumer text, i_slot integer, i_n integer, i_worker text,
    i_max integer default 100)
returns setof pgque.message
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp set jit = off
as $$
declare
    v_slot  pgque.subscription;
    v_page  text;
    v_rows  bigint;
begin
    if i_max is null or i_max < 1 then
        perform pgque.refuse_value('a page cannot have %s messages', i_max::text, 'Ask for 1 or more.');
    end if;
    loop
        loop  -- the next batch spans enough ticks for about i_max events
            v_slot := pgque.find_leased_slot(i_queue, i_consumer, i_slot, i_n, i_worker);
            if v_slot.sub_batch is null then
                v_slot.sub_next_tick := pgque.limit_to_change(
                    v_slot.sub_id, v_slot.sub_last_tick, (pgque.find_next_tick(
                        v_slot.sub_queue, pgque.find_tick(v_slot.sub_queue, v_slot.sub_last_tick),
                        null, null, null, least(i_max::bigint * i_n, 2147483647)::integer)).tick_id);
                if v_slot.sub_next_tick is not null then
                    v_slot.sub_batch := pgque.next_batch_id();
                elsif v_slot.lease_until > clock_timestamp() + v_slot.lease_ttl / 2 then
                    return;
                end if;
            end if;
            v_slot.page_to := case when v_slot.sub_batch is not null then 9223372036854775807 end;
            v_slot.lease_until := clock_timestamp() + v_slot.lease_ttl;
            exit when pgque.append_position(v_slot);
        end loop;
        exit when v_slot.sub_batch is null;
        v_slot.pos_seq := v_slot.pos_seq + 1;
        v_page := format('select * from (%s) e order by e.ev_id limit %s',
                         pgque.batch_select(v_slot.sub_batch, '*'), i_max);
        return query execute format(  -- quoted: made above
            'select ev_id, $1, ev_type, ev_data, ev_retry, ev_time, '
            'ev_extra1, ev_extra2, ev_extra3, ev_extra4 from (%s) page', v_page)
        using v_slot.sub_batch;
        get diagnostics v_rows = row_count;
        if v_rows = i_max then
            -- A full page ends at its last event, any other page at the end of the batch.
            execute format('select max(ev_id) from (%s) page', v_page)  -- quoted: made above
            into v_slot.page_to;
            perform pgque.append_position(v_slot);
        end if;
        exit when v_rows > 0;
        perform pgque.close_batch(v_slot);
    end loop;
end;
$$;

-- Acks the page that receive_partitioned returned last, and renews the lease. Returns 1, or 0 if there
-- is no such page.
-- locks: waits for a concurrent move of the same slot. writes: position_log.
create or replace function pgque.ack_partitioned(
    i_queue text, i_consumer text, i_slot integer, i_n integer, i_worker text)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_slot pgque.subscription;
begin
    loop
        v_slot := pgque.find_leased_slot(i_queue, i_consumer, i_slot, i_n, i_worker);
        if v_slot.page_to is null then
            return 0;
        end if;
        v_slot.lease_until := clock_timestamp() + v_slot.lease_ttl;
        exit when pgque.close_batch(v_slot);
    end loop;
    return 1;
end;
$$;

-- Schedules a message of the page for another delivery, or makes it a dead letter when its retries are
-- used up. Later events of its key do not wait for it. Renews the lease. Returns 1.
-- locks: waits for a concurrent move of the same slot. writes: position_log, retry_queue, dead_letter.
create or replace function pgque.nack_partitioned(
    i_queue text, i_consumer text, i_slot integer, i_n integer, i_worker text,
    i_msg pgque.message, i_retry_after interval default '1 minute', i_reason text default null)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_slot pgque.subscription;
begin
    loop
        v_slot := pgque.find_leased_slot(i_queue, i_consumer, i_slot, i_n, i_worker);
        v_slot.lease_until := clock_timestamp() + v_slot.lease_ttl;
        exit when pgque.append_position(v_slot);
    end loop;
    if (i_msg.msg_id <= v_slot.page_to) is not true then
        raise exception 'event % is not in the page that slot % of consumer "%" on queue "%" '
                        'handed out', coalesce(i_msg.msg_id::text, 'null'), i_slot, i_consumer,
                        i_queue
            using errcode = 'PQ009',
                  hint = 'Pass a message of the last receive_partitioned that is not acked yet.';
    end if;
    return pgque.nack_batch(v_slot.sub_batch, array[i_msg.msg_id], i_retry_after, i_reason,
                            v_slot.lease_owner, v_slot.lease_epoch);
end;
$$;

-- Returns the slot of a key among n slots: its hash modulo n, made positive; events without a key are
-- in slot 0. Collation "C" hashes the bytes, so the result is the same in every database.
-- hashtextextended does not change, because hash partitioning uses it. In SQL, so that it is inlined.
create or replace function pgque.slot_of_key(i_key text, i_n integer)
returns integer
language sql immutable
as $$
    select coalesce((pg_catalog.hashtextextended(i_key collate pg_catalog."C", 0)
                     operator(pg_catalog.%) i_n operator(pg_catalog.+) i_n)
                    operator(pg_catalog.%) i_n, 0)::pg_catalog.int4
$$;
