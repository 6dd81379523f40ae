-- Generates the functions that belong to one queue, where a general one would need dynamic SQL on
-- the hot path. Their texts contain nothing but the queue's number, and use qualified names only.
-- locks: none. writes: pg_proc.
create or replace function pgque.build_queue_functions(i_queue_id integer)
returns void
language plpgsql
set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    perform pgque.build_insert_function(
        i_queue_id, 'insert',
        'i_type text, i_data text, i_extra1 text default null, i_extra2 text default null, '
        'i_extra3 text default null, i_extra4 text default null', 'bigint',
        'insert into %s (ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4) '
        'values (i_type, i_data, i_extra1, i_extra2, i_extra3, i_extra4) '
        'returning ev_id into v_result;');
    perform pgque.build_insert_function(
        i_queue_id, 'insert_bulk', 'i_type text, i_data text[]', 'bigint[]',
        'with inserted as ('
        'insert into %s (ev_type, ev_data) '
        'select i_type, payload from pg_catalog.unnest(i_data) payload returning ev_id) '
        'select pg_catalog.array_agg(i.ev_id) into v_result from inserted i;');
    perform pgque.build_tables_function(i_queue_id);
end;
$$;

-- One insert function: it reads the queue's row and runs the given insert on the current child,
-- as a static statement each, so that their plans are kept.
-- locks: none. writes: pg_proc.
create or replace function pgque.build_insert_function(
    i_queue_id integer, i_name text, i_arguments text, i_result text, i_insert text)
returns void
language plpgsql
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_name   text := format('pgque.event_%s_%s', i_queue_id, i_name);
    v_cases  text;
begin
    select string_agg(format('when v_table operator(pg_catalog.=) %s then %s ', nr,
                             format(i_insert, format('pgque.event_%s_%s', i_queue_id, nr))),
                      '' order by nr)
    into v_cases
    from generate_series(0, 2) nr;

    execute format(  -- quoted: a number, and texts of build_queue_functions
        'create or replace function %1$s(%3$s) returns %4$s language plpgsql security definer '
        'as $fn$ declare v_result %4$s; v_table integer; v_disabled boolean; '
        'begin '
        'select q.queue_cur_table, q.queue_disable_insert into v_table, v_disabled '
        'from pgque.queue q where q.queue_id operator(pg_catalog.=) %2$s; '
        'if v_disabled then perform pgque.refuse_insert(%2$s); end if; '
        'case %5$s end case; '
        'return v_result; end; $fn$',
        v_name, i_queue_id, i_arguments, i_result, v_cases);
    execute format('revoke all on function %s from public', v_name);  -- quoted: as above
    execute format('grant execute on function %s to pgque_writer', v_name);  -- quoted: as above
end;
$$;

-- The search for the children that hold events of a range of transactions: a probe of each index.
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
        'if exists (select from %1$s where ev_txid operator(pg_catalog.>=) i_from '
        'and ev_txid operator(pg_catalog.<) i_to) then return next %1$L; end if; ',
        format('pgque.event_%s_%s', i_queue_id, nr)), '' order by nr)
    into v_probes
    from generate_series(0, 2) nr;

    execute format(  -- quoted: a number, and the texts made of it above
        'create or replace function %s(i_from xid8, i_to xid8) returns setof text '
        'language plpgsql stable as $fn$ begin %s end; $fn$', v_name, v_probes);
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
