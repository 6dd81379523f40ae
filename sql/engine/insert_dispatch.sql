-- The branches of a dispatch function: a binary search for a queue's number among those given,
-- which ends in a call of one of that queue's insert functions.
-- locks: none. writes: nothing.
create or replace function pgque.dispatch_branches(i_queue_ids integer[], i_call text)
returns text
language plpgsql immutable
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_middle integer := cardinality(i_queue_ids) / 2 + 1;
begin
    if v_middle = 1 then
        return format(
            'if i_queue_id operator(pg_catalog.=) %1$s then '
            'return pgque.event_%1$s_%2$s; end if;', i_queue_ids[1], i_call);
    end if;
    return format('if i_queue_id operator(pg_catalog.<) %s then %s else %s end if;',
                  i_queue_ids[v_middle], pgque.dispatch_branches(i_queue_ids[:v_middle - 1], i_call),
                  pgque.dispatch_branches(i_queue_ids[v_middle:], i_call));
end;
$$;

-- Builds the functions that call a queue's insert functions: dispatch_insert for send and
-- insert_event, dispatch_insert_as for send_idem, and dispatch_insert_bulk for send_batch. They
-- call the functions of the first hundred queues statically. There are no more static calls, since
-- each session compiles all of them at its first event. For other queues they use EXECUTE, which
-- makes and discards a plan for each event, and copies the payloads of a bulk insert once more. A
-- dropped queue does no harm: its row is looked up first, and numbers are never reused.
-- locks: event_template against another build, until the transaction ends. writes: pg_proc.
create or replace function pgque.build_insert_dispatch()
returns void
language plpgsql
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_ids integer[];
begin
    lock table pgque.event_template in share update exclusive mode;
    v_ids := array(select q.queue_id from pgque.queue q order by q.queue_id limit 100);
    perform pgque.build_dispatch(
        v_ids, 'dispatch_insert', '{i_type,i_data}', '{text,text}', 'bigint', 'insert_short');
    perform pgque.build_dispatch(
        v_ids, 'dispatch_insert_as', '{i_id,i_type,i_data,i_extra1,i_extra2}',
        '{bigint,text,text,text,text}', 'bigint', 'insert_as');
    perform pgque.build_dispatch(
        v_ids, 'dispatch_insert_bulk', '{i_type,i_data}', '{text,text[]}', 'bigint[]',
        'insert_bulk');
end;
$$;

-- Builds one dispatch function, unless it is up to date.
-- locks: held by the caller. writes: pg_proc.
create or replace function pgque.build_dispatch(
    i_queue_ids integer[], i_name text, i_arguments text[], i_types text[], i_result text,
    i_insert text)
returns void
language plpgsql
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_arguments  text := array_to_string(i_arguments, ', ');
    v_body       text;
begin
    v_body := format(
        'declare v_result %s; begin %s '
        'execute pg_catalog.concat(''select pgque.event_'', i_queue_id, ''_%s(%s)'') '
        'into v_result using %s; return v_result; end;', i_result,
        case when i_queue_ids <> '{}' then
            pgque.dispatch_branches(i_queue_ids, format('%s(%s)', i_insert, v_arguments)) end,
        i_insert,
        (select string_agg(format('$%s', nr), ', ' order by nr)
         from generate_series(1, cardinality(i_arguments)) nr),
        v_arguments);
    if exists (select from pg_proc p
               where p.pronamespace = 'pgque'::regnamespace
                 and p.proname = i_name and p.prosrc = v_body) then
        return;
    end if;

    execute format(  -- quoted: names and types of build_insert_dispatch
        'create or replace function pgque.%I(i_queue_id integer, %s) returns %s '
        'language plpgsql as %L', i_name,
        (select string_agg(format('%s %s', a.name, a.type), ', ' order by a.nr)
         from unnest(i_arguments, i_types) with ordinality a(name, type, nr)),
        i_result, v_body);
    execute format('revoke all on function pgque.%I from public', i_name);
end;
$$;
