-- Consuming under PgQ's names.

-- Unregisters a consumer, with its subconsumers, and deletes its retries. Returns how many were
-- unregistered, subconsumers included; 0 if there is no such consumer. A subconsumer that is
-- unregistered by its own name, and has a batch open, is refused.
-- locks: those of pgque.unregister_consumer. writes: the same.
create or replace function pgq.unregister_consumer(x_queue_name text, x_consumer_name text)
returns integer
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
declare
    v_members  integer := 0;
    v_name     text;
begin
    for v_name in
        select substr(c.co_name, length(mc.co_name) + 2)
        from pgque.queue q
        join pgque.subscription_base m on m.sub_queue = q.queue_id
        join pgque.consumer mc on mc.co_id = m.sub_consumer
        join pgque.subscription_base s on s.sub_main = m.sub_id
        join pgque.consumer c on c.co_id = s.sub_consumer
        where q.queue_name = x_queue_name and mc.co_name = x_consumer_name
    loop
        v_members := v_members
            + pgque.unregister_subconsumer(x_queue_name, x_consumer_name, v_name, 1);
    end loop;
    return v_members + pgque.unregister_consumer(x_queue_name, x_consumer_name);
end;
$$;

-- The same, and returns only the id. It has no SET clause, for speed.
-- locks: those of pgque.next_batch. writes: the same.
create or replace function pgq.next_batch(i_queue_name text, i_consumer_name text)
returns bigint
language plpgsql security definer
as $$
begin
    return pgque.next_batch($1, $2);
end;
$$;

-- The events of an open batch, in order of ev_id. The planner inlines it into the statement that
-- calls it, so that no row is stored twice. It runs with the rights of its caller.
create or replace function pgq.get_batch_events(
    x_batch_id bigint,
    out ev_id bigint, out ev_time timestamptz, out ev_txid bigint, out ev_retry integer,
    out ev_type text, out ev_data text,
    out ev_extra1 text, out ev_extra2 text, out ev_extra3 text, out ev_extra4 text)
returns setof record
language sql stable
as $$
    select * from pgque.get_batch_events($1)
$$;

-- Opens a cursor over a batch's events and returns the first ones; FETCH in the same transaction
-- returns the others. i_extra_where is SQL of the caller, so this runs with the caller's rights and
-- search_path, as one statement: the caller could send the same text directly.
-- locks: none. writes: nothing, unless the caller's condition does.
create or replace function pgq.get_batch_cursor(
    i_batch_id bigint, i_cursor_name text, i_quick_limit integer, i_extra_where text,
    out ev_id bigint, out ev_time timestamptz, out ev_txid bigint, out ev_retry integer,
    out ev_type text, out ev_data text,
    out ev_extra1 text, out ev_extra2 text, out ev_extra3 text, out ev_extra4 text)
returns setof record
language plpgsql
as $$
declare
    v_cursor  refcursor := i_cursor_name::pg_catalog.refcursor;
begin
    if coalesce(i_cursor_name, '') = '' or i_quick_limit is null or i_quick_limit < 0
       or exists (select from pg_catalog.pg_cursors c where c.name = i_cursor_name) then
        raise exception using
            errcode = 'PQ005',
            message = pg_catalog.format(
                'cannot open cursor "%s" with %s events at once', coalesce(i_cursor_name, 'null'),
                coalesce(i_quick_limit::pg_catalog.text, 'null')),
            hint = 'Name a cursor that is not open, and ask for 0 or more events.';
    end if;

    open v_cursor no scroll for execute pg_catalog.format(  -- quoted: the caller's own SQL
        e'select * from (%s) e where (%s\n) order by 1',
        pgq.batch_event_sql(i_batch_id), coalesce(i_extra_where, 'true'));
    for v_nr in 1..i_quick_limit loop
        fetch v_cursor into ev_id, ev_time, ev_txid, ev_retry, ev_type, ev_data,
                            ev_extra1, ev_extra2, ev_extra3, ev_extra4;
        exit when not found;
        return next;
    end loop;
end;
$$;

-- The same over all events of the batch.
create or replace function pgq.get_batch_cursor(
    i_batch_id bigint, i_cursor_name text, i_quick_limit integer,
    out ev_id bigint, out ev_time timestamptz, out ev_txid bigint, out ev_retry integer,
    out ev_type text, out ev_data text,
    out ev_extra1 text, out ev_extra2 text, out ev_extra3 text, out ev_extra4 text)
returns setof record
language plpgsql
set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    return query
    select * from pgq.get_batch_cursor(i_batch_id, i_cursor_name, i_quick_limit, null);
end;
$$;
