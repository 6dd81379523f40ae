-- Who may do what with a queue's tables and sequence; again after a restore without privileges.
-- Writers get no more than the columns that are theirs to fill, so that COPY into the current
-- table cannot forge ids, times or transactions.
-- locks: none. writes: the catalog.
create or replace function pgque.grant_perms(x_queue_name text)
returns integer
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_queue   pgque.queue := pgque.find_queue(x_queue_name);
    v_parent  text := format('event_%s', v_queue.queue_id);
    v_seq     text := format('event_%s_id_seq', v_queue.queue_id);
    v_child   text;
begin
    execute format('revoke all on pgque.%I from public, pgque_reader, pgque_writer, pgque_admin',
                   v_parent);
    execute format('revoke all on sequence pgque.%I '
                   'from public, pgque_reader, pgque_writer, pgque_admin', v_seq);
    execute format('grant select on pgque.%I to pgque_reader', v_parent);
    execute format('grant usage on sequence pgque.%I to pgque_writer', v_seq);

    for v_nr in 0..v_queue.queue_ntables - 1 loop
        v_child := format('%s_%s', v_parent, v_nr);
        execute format('revoke all on pgque.%I from public, pgque_reader, pgque_writer, pgque_admin',
                       v_child);
        execute format('grant select on pgque.%I to pgque_reader', v_child);
        execute format(
            'grant insert (ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4) '
            'on pgque.%I to pgque_writer', v_child);
    end loop;
    return 1;
end;
$$;

-- Storage settings of a queue's tables as create_queue makes them: full pages, and no autovacuum,
-- which has nothing to do where TRUNCATE empties.
-- locks: its event tables, against other schema changes. writes: the catalog.
create or replace function pgque.tune_storage(i_queue_name text)
returns integer
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_queue pgque.queue := pgque.find_queue(i_queue_name);
begin
    for v_nr in 0..v_queue.queue_ntables - 1 loop
        execute format(
            'alter table pgque.%I set (fillfactor = 100, autovacuum_enabled = false, '
            'toast.autovacuum_enabled = false)', format('event_%s_%s', v_queue.queue_id, v_nr));
    end loop;
    return 1;
end;
$$;
