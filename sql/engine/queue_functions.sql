-- Generates the functions that belong to one queue, where general ones would read the queue's row
-- or need dynamic SQL on every event. Their texts contain nothing but the queue's number, and use
-- qualified names only.
-- locks: none; callers lock the queue's row. writes: pg_proc.
create or replace function pgque.build_queue_functions(i_queue_id integer)
returns void
language plpgsql
set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    perform pgque.build_insert_functions(i_queue_id);
    perform pgque.build_tables_function(i_queue_id);
end;
$$;

-- The insert functions know the current child, so rotation and disable_insert build them anew. A
-- session that still runs the earlier text inserts into the earlier child, which is safe: readers
-- look into all of them.
-- locks: none; callers lock the queue's row. writes: pg_proc.
create or replace function pgque.build_insert_functions(i_queue_id integer)
returns void
language plpgsql
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_queue  pgque.queue;
    v_table  text;
begin
    select q.* into v_queue from pgque.queue q where q.queue_id = i_queue_id;
    v_table := format('%s_%s', v_queue.queue_data_pfx, v_queue.queue_cur_table);
    perform pgque.build_insert_function(
        v_queue, 'insert',
        'i_type text, i_data text, i_extra1 text default null, i_extra2 text default null, '
        'i_extra3 text default null, i_extra4 text default null', 'bigint',
        format('v_result := pg_catalog.nextval(%L); '
               'insert into %s (ev_id, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4) '
               'values (v_result, i_type, i_data, i_extra1, i_extra2, i_extra3, i_extra4);',
               v_queue.queue_event_seq, v_table));
    perform pgque.build_insert_function(
        v_queue, 'insert_bulk', 'i_type text, i_data text[]', 'bigint[]',
        format('with inserted as ('
               'insert into %s (ev_type, ev_data) '
               'select i_type, payload from pg_catalog.unnest(i_data) payload returning ev_id) '
               'select pg_catalog.array_agg(i.ev_id) into v_result from inserted i;', v_table));
end;
$$;

-- One insert function: a static statement on the current child, whose plan is kept. Of a queue that
-- is closed to producers it refuses instead.
-- locks: none; callers lock the queue's row. writes: pg_proc.
create or replace function pgque.build_insert_function(
    i_queue pgque.queue, i_name text, i_arguments text, i_result text, i_insert text)
returns void
language plpgsql
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_name  text := format('%s_%s', i_queue.queue_data_pfx, i_name);
    v_body  text := i_insert;
begin
    if i_queue.queue_disable_insert then
        v_body := format('perform pgque.refuse_insert(%s);', i_queue.queue_id);
    end if;
    execute format(  -- quoted: a number, and texts of build_insert_functions
        'create or replace function %s(%s) returns %s language plpgsql security definer '
        'as $fn$ declare v_result %s; begin %s return v_result; end; $fn$',
        v_name, i_arguments, i_result, i_result, v_body);
    execute format('revoke all on function %s from public', v_name);  -- quoted: as above
    execute format('grant execute on function %s to pgque_writer', v_name);  -- quoted: as above
end;
$$;

-- The search for the children that hold events of a range of transactions: a probe of each index.
-- Its plan is kept from the time when the tables were small, so sequential scans are ruled out.
-- locks: none. writes: pg_proc.
create or replace function pgque.build_tables_function(i_queue_id integer)
returns void
language plpgsql
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_name    text := format('pgque.event_%s_tables', i_queue_id);
    v_probes  text;
begin
    select string_agg(format(
        'case when exists (select from %1$s where ev_txid operator(pg_catalog.>=) i_from '
        'and ev_txid operator(pg_catalog.<) i_to) then %1$L end',
        format('pgque.event_%s_%s', i_queue_id, nr)), ', ' order by nr)
    into v_probes
    from generate_series(0, 2) nr;

    execute format(  -- quoted: a number, and the texts made of it above
        'create or replace function %s(i_from xid8, i_to xid8) returns text[] '
        'language plpgsql set enable_seqscan = off as $fn$ begin '
        'return pg_catalog.array_remove(array[%s], null); end; $fn$', v_name, v_probes);
    execute format('revoke all on function %s from public', v_name);  -- quoted: as above
end;
$$;

-- Called by a generated insert function that found its queue closed to producers.
-- locks: none. writes: nothing.
create or replace function pgque.refuse_insert(i_queue_id integer)
returns void
language plpgsql stable
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_name text;
begin
    select q.queue_name into v_name from pgque.queue q where q.queue_id = i_queue_id;
    raise exception using
        errcode = 'PQ006',
        message = format('queue "%s" takes no events now: disable_insert is set', v_name),
        hint = format('Open it with: select pgque.set_queue_config(%L, ''disable_insert'', ''false'');',
                      v_name);
end;
$$;
