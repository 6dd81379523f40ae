-- Generates the functions of one queue. General functions would read the queue's row or need
-- dynamic SQL for every event. The generated texts contain nothing of the queue but its number, and
-- only qualified names.
-- locks: none; callers lock the queue's row. writes: pg_proc.
create or replace function pgque.build_queue_functions(i_queue_id integer)
returns void
language plpgsql
set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    perform pgque.build_insert_functions(i_queue_id);
    perform pgque.build_tables_function(i_queue_id);
    perform pgque.build_read_function(i_queue_id);
end;
$$;

-- Builds the insert functions of a queue. They name the current child, so rotation and
-- disable_insert build them again. A session that still runs the earlier text inserts into the
-- earlier child, which is safe: readers look into all children. The short function takes only what
-- send passes, which makes it a microsecond faster. The bulk function draws the ids first: that is
-- cheaper than returning them row by row, and assigns them in the order of the payloads.
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
        v_queue, 'insert_short', 'i_type text, i_data text', 'bigint',
        format('v_result := pg_catalog.nextval(%L); '
               'insert into %s (ev_id, ev_type, ev_data) values (v_result, i_type, i_data);',
               v_queue.queue_event_seq, v_table));
    perform pgque.build_insert_function(
        v_queue, 'insert_as',
        'i_id bigint, i_type text, i_data text, i_extra1 text, i_extra2 text', 'bigint',
        format('v_result := i_id; '
               'insert into %s (ev_id, ev_type, ev_data, ev_extra1, ev_extra2) '
               'values (v_result, i_type, i_data, i_extra1, i_extra2);', v_table));
    -- Writers must not choose ids; send_idem takes them from the queue's sequence.
    execute format('revoke all on function pgque.%I(bigint, text, text, text, text) '
                   'from pgque_writer',
                   format('event_%s_insert_as', i_queue_id));
    perform pgque.build_insert_function(
        v_queue, 'insert_bulk', 'i_type text, i_data text[]', 'bigint[]',
        format('v_result := array(select pg_catalog.nextval(%L) '
               'from pg_catalog.generate_series(1, pg_catalog.cardinality(i_data))); '
               'insert into %s (ev_id, ev_type, ev_data) '
               'select pg_catalog.unnest(v_result), i_type, pg_catalog.unnest(i_data);',
               v_queue.queue_event_seq, v_table));
end;
$$;

-- Builds one insert function: a static statement on the current child, whose plan is cached. If the
-- queue is closed to producers, the function first calls refuse_insert.
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
        v_body := format('perform pgque.refuse_insert(%s); %s', i_queue.queue_id, i_insert);
    end if;
    execute format(  -- quoted: a number, and texts of build_insert_functions
        'create or replace function %s(%s) returns %s language plpgsql security definer '
        'as $fn$ declare v_result %s; begin %s return v_result; end; $fn$',
        v_name, i_arguments, i_result, i_result, v_body);
    execute format('revoke all on function %s from public', v_name);  -- quoted: as above
    execute format('grant execute on function %s to pgque_writer', v_name);  -- quoted: as above
end;
$$;

-- Refuses an event for a queue that is closed to producers. As in PgQ, a session with
-- session_replication_role = replica may send, so that replication continues.
-- locks: none. writes: nothing.
create or replace function pgque.refuse_insert(i_queue_id integer)
returns void
language plpgsql stable
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_name text;
begin
    if current_setting('session_replication_role') = 'replica' then
        return;
    end if;
    select q.queue_name into v_name from pgque.queue q where q.queue_id = i_queue_id;
    raise exception using
        errcode = 'PQ006',
        message = format('queue "%s" takes no events now: disable_insert is set', v_name),
        hint = format('Open it with: select pgque.set_queue_config(%L, ''disable_insert'', ''false'');',
                      v_name);
end;
$$;
