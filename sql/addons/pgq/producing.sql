-- Publishing under PgQ's names.

-- Publishes one event with all its fields; returns its id. It has no SET clause, for speed.
-- locks: none beyond the insert's own. writes: the queue's current event table.
create or replace function pgq.insert_event(
    queue_name text, ev_type text, ev_data text,
    ev_extra1 text, ev_extra2 text, ev_extra3 text, ev_extra4 text)
returns bigint
language plpgsql security definer
as $$
declare
    v_id pg_catalog.int8;
begin
    v_id := pgque.insert_event($1, $2, $3, $4, $5, $6, $7);
    if exists (select from pgq.queue_extra x where x.per_tx_limit is not null) then
        perform pgq.check_tx_limit($1);
    end if;
    return v_id;
end;
$$;

-- The short form, without the extra fields.
-- locks: none beyond the insert's own. writes: the queue's current event table.
create or replace function pgq.insert_event(queue_name text, ev_type text, ev_data text)
returns bigint
language plpgsql security definer
as $$
declare
    v_id pg_catalog.int8;
begin
    v_id := pgque.send($1, $2, $3);
    if exists (select from pgq.queue_extra x where x.per_tx_limit is not null) then
        perform pgq.check_tx_limit($1);
    end if;
    return v_id;
end;
$$;

-- Publishes an event with a given id, time, owner and retry count.
-- locks: none beyond the insert's own. writes: the queue's current event table.
create or replace function pgq.insert_event_raw(
    queue_name text, ev_id bigint, ev_time timestamptz, ev_owner integer, ev_retry integer,
    ev_type text, ev_data text, ev_extra1 text, ev_extra2 text, ev_extra3 text, ev_extra4 text)
returns bigint
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
declare
    v_id bigint;
begin
    v_id := pgque.insert_event_raw($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11);
    perform pgq.check_tx_limit($1);
    return v_id;
end;
$$;

-- Counts an event of this transaction, and refuses one more than queue_per_tx_limit allows. The
-- count is a setting that ends with the transaction, so a rollback to a savepoint lowers it.
-- Negative limits mean none, as in PgQ.
create or replace function pgq.check_tx_limit(i_queue text)
returns void
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
declare
    v_id       integer;
    v_limit    integer;
    v_setting  text;
    v_count    integer;
begin
    select q.queue_id, x.per_tx_limit into v_id, v_limit
    from pgq.queue_extra x
    join pgque.queue q on q.queue_id = x.queue_id
    where q.queue_name = i_queue and x.per_tx_limit >= 0;
    if not found then
        return;
    end if;
    v_setting := format('pgq.inserted_%s', v_id);
    v_count := coalesce(nullif(current_setting(v_setting, true), ''), '0')::integer + 1;
    if v_count > v_limit then
        raise exception using
            errcode = 'program_limit_exceeded',
            message = format('Queue ''%s'' allows max %s events from one TX', i_queue, v_limit),
            hint = 'Send fewer events in a transaction, or raise queue_per_tx_limit with: '
                   'update pgq.queue set queue_per_tx_limit = ... where queue_name = ...;';
    end if;
    perform set_config(v_setting, v_count::text, true);
end;
$$;
