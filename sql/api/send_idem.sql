-- Publishes an event, unless an event with the same key was sent within the key's time to live. Returns
-- the event's id, and whether it is the earlier event's. If two producers use one key, the second waits
-- until the first commits, and sends only if the first rolls back. Sequential scans are disabled,
-- because the plan may have been cached when there were few keys. The event's ev_extra2 is the key.
-- locks: the key. writes: idem, the queue's current event table.
create or replace function pgque.send_idem(
    i_queue text, i_type text, i_payload text, i_idem_key text,
    i_ttl interval default '1 hour', i_partition_key text default null)
returns table (event_id bigint, deduped boolean)
language plpgsql security definer set enable_seqscan = off
as $$
declare
    v_queue_id  pg_catalog.int4;
    v_seq       pg_catalog.regclass;
begin
    select q.queue_id, q.queue_seq into v_queue_id, v_seq
    from pgque.queue q where q.queue_name operator(pg_catalog.=) i_queue;
    if not found or i_idem_key is null or i_ttl is null
       or i_idem_key operator(pg_catalog.=) ''
       or pg_catalog.octet_length(i_idem_key) operator(pg_catalog.>) 1000
       or i_ttl operator(pg_catalog.<=) '0' or i_ttl operator(pg_catalog.>) '100 years' then
        perform pgque.refuse_send_idem(i_queue, i_idem_key, i_ttl);
    end if;

    loop
        select i.event_id, i.expires_at operator(pg_catalog.>) pg_catalog.clock_timestamp()
        into event_id, deduped
        from pgque.idem i
        where i.queue_id operator(pg_catalog.=) v_queue_id
          and i.idem_key operator(pg_catalog.=) i_idem_key;
        if deduped then
            return next;
            return;
        end if;

        insert into pgque.idem as i (queue_id, idem_key, event_id, expires_at)
        values (v_queue_id, i_idem_key, pg_catalog.nextval(v_seq),
                pg_catalog.clock_timestamp() operator(pg_catalog.+) i_ttl)
        on conflict on constraint idem_pkey do update
        set event_id = excluded.event_id, expires_at = excluded.expires_at
        where i.expires_at operator(pg_catalog.<=) pg_catalog.clock_timestamp()
        returning i.event_id into event_id;
        exit when found;
    end loop;

    insert into pgque.event (ev_table, ev_id, ev_type, ev_data, ev_extra1, ev_extra2)
    select q.queue_id operator(pg_catalog.*) 4 operator(pg_catalog.+) q.queue_cur_table,
           event_id, i_type, i_payload, i_partition_key, i_idem_key
    from pgque.queue q
    where q.queue_id operator(pg_catalog.=) v_queue_id
      and (not q.queue_disable_insert
           or pg_catalog.current_setting('session_replication_role')
              operator(pg_catalog.=) 'replica');
    if not found then
        perform pgque.refuse_insert(i_queue);
    end if;
    deduped := false;
    return next;
end;
$$;

-- The jsonb form.
create or replace function pgque.send_idem(
    i_queue text, i_type text, i_payload jsonb, i_idem_key text, i_ttl interval default '1 hour',
    i_partition_key text default null)
returns table (event_id bigint, deduped boolean)
language plpgsql security definer
as $$
begin
    return query select * from pgque.send_idem(i_queue, i_type, i_payload::pg_catalog.text,
        i_idem_key, i_ttl, i_partition_key);
end;
$$;

-- Raises the error for arguments that send_idem does not accept.
create or replace function pgque.refuse_send_idem(i_queue text, i_idem_key text, i_ttl interval)
returns void
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
begin
    perform pgque.find_queue(i_queue);
    if i_idem_key is null or octet_length(i_idem_key) not between 1 and 1000 then
        raise exception using
            errcode = 'PQ005',
            message = case
                when i_idem_key is null then 'the idempotency key is null'
                else format('an idempotency key has 1 to 1000 bytes, this one has %s',
                            octet_length(i_idem_key)) end,
            hint = 'Pass a text that is the same each time the same event is sent.';
    end if;
    perform pgque.refuse_value(
        'an idempotency key cannot live for %s', i_ttl::text,
        'Give an interval above 0 and up to 100 years; the default is 1 hour.');
end;
$$;

-- Deletes expired idempotency keys. Returns their number.
create or replace function pgque.maint_idem()
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return pgque.purge_idem(null);
end;
$$;

-- The same for one queue. Returns 0 if the queue does not exist: no queue has the number 0.
create or replace function pgque.maint_idem(i_queue_name text)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return pgque.purge_idem(coalesce((pgque.look_for_queue(i_queue_name)).queue_id, 0));
end;
$$;

-- Deletes expired keys of one queue or of all, at most 100,000 per call, so that no call takes long.
-- locks: the keys; those that a producer is renewing are skipped. writes: idem.
create or replace function pgque.purge_idem(i_queue_id integer)
returns integer
language plpgsql set search_path = pgque, pg_catalog, pg_temp set lock_timeout = '1s'
as $$
declare
    v_now     constant timestamptz := clock_timestamp();
    v_purged  integer;
begin
    delete from pgque.idem d
    where d.ctid = any (array(
        select i.ctid
        from pgque.idem i
        where i.expires_at <= v_now
          and (i_queue_id is null or i.queue_id = i_queue_id)
        limit 100000
        for update skip locked));
    get diagnostics v_purged = row_count;
    return v_purged;
end;
$$;
