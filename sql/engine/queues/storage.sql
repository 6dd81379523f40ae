-- Sets the rights on a queue's tables and sequence; call it again after a restore without privileges.
-- Writers may insert only the columns that they fill, so that COPY cannot forge ids, times or
-- transactions, into the current table and the previous one, whose name a COPY may have looked up
-- earlier; into no table while disable_insert is set.
-- locks: none. writes: the catalog.
create or replace function pgque.grant_perms(x_queue_name text)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_queue   pgque.queue := pgque.find_queue(x_queue_name);
    v_parent  text := format('event_%s', v_queue.queue_id);
    v_seq     text := format('event_%s_id_seq', v_queue.queue_id);
    v_table   text;
begin
    execute format('revoke all on sequence pgque.%I '
                   'from public, pgque_reader, pgque_writer, pgque_admin', v_seq);
    execute format('grant usage on sequence pgque.%I to pgque_writer', v_seq);

    foreach v_table in array array[v_parent, v_parent || '_0', v_parent || '_1', v_parent || '_2'] loop
        execute format('revoke all on pgque.%I from public, pgque_reader, pgque_writer, pgque_admin',
                       v_table);
        execute format('grant select on pgque.%I to pgque_reader', v_table);
    end loop;
    perform pgque.open_event_tables(v_queue.queue_id);
    return 1;
end;
$$;

-- Lets writers insert into the event tables that they may fill now, and not into the others.
-- locks: none; callers lock the queue's row. writes: the catalog.
create or replace function pgque.open_event_tables(i_queue_id integer)
returns void
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_queue    pgque.queue;
    v_child    text;
    v_is_open  boolean;
begin
    select q.* into v_queue from pgque.queue q where q.queue_id = i_queue_id;
    for v_nr in 0..v_queue.queue_ntables - 1 loop
        v_child := format('pgque.event_%s_%s', i_queue_id, v_nr);
        v_is_open := not v_queue.queue_disable_insert
            and v_nr <> (v_queue.queue_cur_table + 1) % v_queue.queue_ntables;
        continue when v_is_open = has_column_privilege('pgque_writer', v_child, 'ev_data', 'insert');
        execute format(  -- quoted: made of numbers
            '%s insert (ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4) '
            'on %s %s pgque_writer',
            case when v_is_open then 'grant' else 'revoke' end, v_child,
            case when v_is_open then 'to' else 'from' end);
    end loop;
end;
$$;

-- Sets the storage parameters of a queue's tables as create_queue does: full pages, and no autovacuum,
-- which has nothing to do because TRUNCATE empties the tables. Returns 1, or 0 if the queue does not
-- exist.
-- locks: its event tables, against other schema changes. writes: the catalog.
create or replace function pgque.tune_storage(i_queue_name text)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_queue pgque.queue := pgque.look_for_queue(i_queue_name);
begin
    if v_queue.queue_id is null then
        return 0;
    end if;
    for v_nr in 0..v_queue.queue_ntables - 1 loop
        execute format(
            'alter table pgque.%I set (fillfactor = 100, autovacuum_enabled = false, '
            'toast.autovacuum_enabled = false)', format('event_%s_%s', v_queue.queue_id, v_nr));
    end loop;
    return 1;
end;
$$;
