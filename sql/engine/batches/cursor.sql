-- Opens a cursor over a batch's events and returns the first ones; FETCH in the same transaction
-- returns the others. i_extra_where is SQL from the caller, so this runs with the caller's rights, and
-- as one statement. Names in it must be schema-qualified.
-- locks: none. writes: nothing, unless the caller's condition does.
create or replace function pgque.get_batch_cursor(
    i_batch_id bigint, i_cursor_name text, i_quick_limit integer, i_extra_where text,
    out ev_id bigint, out ev_time timestamptz, out ev_txid bigint, out ev_retry integer,
    out ev_type text, out ev_data text,
    out ev_extra1 text, out ev_extra2 text, out ev_extra3 text, out ev_extra4 text)
returns setof record
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_cursor  refcursor := i_cursor_name::refcursor;
begin
    if coalesce(i_cursor_name, '') = '' or i_quick_limit is null or i_quick_limit < 0
       or exists (select from pg_cursors c where c.name = i_cursor_name) then
        raise exception 'cannot open cursor "%" with % events at once', coalesce(i_cursor_name, 'null'),
                        coalesce(i_quick_limit::text, 'null')
            using errcode = 'PQ005',
                  hint = 'Name a cursor that is not open, and ask for 0 or more events.';
    end if;

    open v_cursor no scroll for execute format(  -- quoted: the caller's own SQL, see above
        e'select * from (%s) e where (%s\n) order by 1',
        pgque.batch_event_sql(i_batch_id), coalesce(i_extra_where, 'true'));
    for v_nr in 1..i_quick_limit loop
        fetch v_cursor into ev_id, ev_time, ev_txid, ev_retry, ev_type, ev_data,
                            ev_extra1, ev_extra2, ev_extra3, ev_extra4;
        exit when not found;
        return next;
    end loop;
end;
$$;

-- The same over all events of the batch.
create or replace function pgque.get_batch_cursor(
    i_batch_id bigint, i_cursor_name text, i_quick_limit integer,
    out ev_id bigint, out ev_time timestamptz, out ev_txid bigint, out ev_retry integer,
    out ev_type text, out ev_data text,
    out ev_extra1 text, out ev_extra2 text, out ev_extra3 text, out ev_extra4 text)
returns setof record
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_cursor  refcursor := i_cursor_name::refcursor;
begin
    if coalesce(i_cursor_name, '') = '' or i_quick_limit is null or i_quick_limit < 0
       or exists (select from pg_cursors c where c.name = i_cursor_name) then
        raise exception 'cannot open cursor "%" with % events at once', coalesce(i_cursor_name, 'null'),
                        coalesce(i_quick_limit::text, 'null')
            using errcode = 'PQ005',
                  hint = 'Name a cursor that is not open, and ask for 0 or more events.';
    end if;

    open v_cursor no scroll for execute format(  -- quoted: the caller's own SQL, see above
        e'select * from (%s) e where (%s\n) order by 1',
        pgque.batch_event_sql(i_batch_id), 'true');
    for v_nr in 1..i_quick_limit loop
        fetch v_cursor into ev_id, ev_time, ev_txid, ev_retry, ev_type, ev_data,
                            ev_extra1, ev_extra2, ev_extra3, ev_extra4;
        exit when not found;
        return next;
    end loop;
end;
$$;
