-- Earlier versions returned fewer columns.
do $$
begin
    if exists (select from pg_proc p
               where p.oid = to_regprocedure('pgque.batch_read_plan(bigint, integer)')
                 and p.proargnames <> '{i_batch_id,i_max_slices,slice_nr,slice_sql,batch_events,'
                                      'slice_from,set_columns}') then
        drop function pgque.batch_read_plan(bigint, integer);
    end if;
end;
$$;

-- Splits an open batch into slices that can be read in parallel: ranges of blocks between the first
-- and the last one that hold rows of the batch. Each slice is one SQL text that any connection with
-- pgque_reader can run by itself; together the slices return each event of the batch once. There
-- are at most i_max_slices slices, but at least one for each table that the batch is in, and none
-- if the batch is empty. A slice fails with PQ008 if its table was truncated or rewritten after
-- planning. slice_from is the part of slice_sql after FROM, for readers that choose their columns.
-- set_columns names those of ev_retry and ev_extra1 to ev_extra4 that are not always null in the
-- slice's table.
-- locks: none. writes: nothing.
create or replace function pgque.batch_read_plan(
    i_batch_id bigint, i_max_slices integer,
    out slice_nr integer, out slice_sql text, out batch_events bigint,
    out slice_from text, out set_columns text[])
returns setof record
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_b record := pgque.describe_batch(i_batch_id);
begin
    return query
    select *
    from pgque.plan_slices(
        v_b.tables,
        format('%s and (%s or %s)', v_b.is_owned, v_b.in_range, coalesce(v_b.in_list, 'false')),
        i_max_slices);
end;
$$;

-- Plans slices of the rows in some tables that meet a condition. One pass over the rows finds the
-- blocks and also the columns that are null throughout, which nobody needs to fetch.
-- locks: none. writes: nothing.
create or replace function pgque.plan_slices(
    i_tables text[], i_where text, i_max_slices integer,
    out slice_nr integer, out slice_sql text, out batch_events bigint,
    out slice_from text, out set_columns text[])
returns setof record
language plpgsql
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_set      text := (select string_agg(format('case when count(%1$s) > 0 then %1$L end', c), ', ')
                        from unnest('{ev_retry,ev_extra1,ev_extra2,ev_extra3,ev_extra4}'::text[]) c);
    v_extents  text;
begin
    if i_max_slices is null or i_max_slices < 1 then
        raise exception using
            errcode = 'PQ005',
            message = format('there is no plan with %s slices', coalesce(i_max_slices::text, 'null')),
            hint = 'Ask for 1 or more.';
    end if;

    select string_agg(format(
        'select %L as tbl, %s as filenode, count(*) as events, '
        '(min(ctid)::text::point)[0]::bigint as lo, (max(ctid)::text::point)[0]::bigint as hi, '
        'array_remove(array[%s], null) as cols from %s where %s',
        t, pg_relation_filenode(t), v_set, t, i_where), ' union all ')
    into v_extents
    from unnest(i_tables) t;
    if v_extents is null then
        return;
    end if;

    -- Each table except one may add a slice that its last step does not fill.
    return query execute format(  -- quoted: numbers, our table names, conditions made by callers
        'with extent as materialized (select * from (%s) e where events > 0), '
        'step as (select ceil(sum(hi - lo + 1) / greatest(1, $1 - count(*) + 1))::bigint as blocks '
        '         from extent) '
        'select (row_number() over (order by tbl, first))::integer, pgque.slice_sql(s.rows), '
        '       (select sum(events) from extent)::bigint, s.rows, cols '
        'from extent, step, generate_series(lo, hi, blocks) first, '
        '     pgque.slice_from(tbl, filenode, $2, first, least(first + blocks, hi + 1)) s (rows)',
        v_extents)
    using i_max_slices, i_where;
end;
$$;

-- Returns the FROM and WHERE clauses of one slice. The conditions are in a CASE, which no index can
-- serve, so that the planner reads the range of blocks and nothing else.
-- locks: none. writes: nothing.
create or replace function pgque.slice_from(
    i_table text, i_filenode oid, i_where text, i_first bigint, i_end bigint)
returns text
language plpgsql immutable
set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return format(
        '%s where ctid >= %L::tid and ctid < %L::tid and case when %s then true end '
        'and pgque.check_filenode(%L, %s)',
        i_table, format('(%s,0)', i_first), format('(%s,0)', i_end), i_where, i_table, i_filenode);
end;
$$;

-- Earlier versions built both parts in one function.
drop function if exists pgque.slice_sql(text, oid, text, bigint, bigint);

-- Returns the statement that reads one slice, with the columns and types of events.
-- locks: none. writes: nothing.
create or replace function pgque.slice_sql(i_from text)
returns text
language plpgsql immutable
set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return concat('select ev_id, ev_time, ev_txid::text::bigint as ev_txid, ev_retry, ev_type, '
                  'ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4 from ', i_from);
end;
$$;

-- Returns true while a table is the one that a plan was made for, else raises an error. It is a
-- one-time filter in the slice's WHERE: it runs once per read, when the table is locked and cannot
-- change any more.
-- locks: none. writes: nothing.
create or replace function pgque.check_filenode(i_table text, i_filenode bigint)
returns boolean
language plpgsql stable
set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    if pg_relation_filenode(i_table) is distinct from i_filenode::oid then
        raise exception using
            errcode = 'PQ008',
            message = format('%s was truncated or rewritten after this read was planned', i_table),
            hint = 'The batch was finished meanwhile, or the table was rewritten (VACUUM FULL, '
                   'CLUSTER): plan the read again.';
    end if;
    return true;
end;
$$;
