-- Splits an open batch into slices that can be read in parallel: ranges of blocks between the first and
-- the last one that hold rows of it. Each slice is one SQL text that any connection with pgque_reader
-- can run; together they return each event once. There are at most i_max_slices, but at least one for
-- each table that the batch is in, and none if it is empty. A slice fails with PQ008 if its table was
-- truncated or rewritten after planning. slice_from is the part of slice_sql after FROM. set_columns
-- names those of ev_retry and ev_extra1 to ev_extra4 that are not always null in the slice's table. The
-- other columns describe the whole batch: how many events it has, the bytes of their payloads and of all
-- their texts, and the times of the oldest and the newest event.
create or replace function pgque.batch_read_plan(
    i_batch_id bigint, i_max_slices integer,
    out slice_nr integer, out slice_sql text, out batch_events bigint,
    out slice_from text, out set_columns text[], out payload_bytes bigint, out batch_bytes bigint,
    out oldest_event timestamptz, out newest_event timestamptz)
returns setof record
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return query select p.*
   from pgque.describe_batch(i_batch_id) b
   cross join pgque.plan_slices(
       b.tables,
       format('%s and (%s or %s)', b.is_owned, b.in_range, coalesce(b.in_list, 'false')),
       i_max_slices) p;
end;
$$;

-- Plans slices of the rows in some tables that meet a condition. One pass over the rows finds the
-- blocks, the sizes and times, and the columns that are null throughout.
create or replace function pgque.plan_slices(
    i_tables text[], i_where text, i_max_slices integer,
    out slice_nr integer, out slice_sql text, out batch_events bigint,
    out slice_from text, out set_columns text[], out payload_bytes bigint, out batch_bytes bigint,
    out oldest_event timestamptz, out newest_event timestamptz)
returns setof record
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_set      text := (select string_agg(format('case when count(%1$s) > 0 then %1$L end', c), ', ')
                        from unnest('{ev_retry,ev_extra1,ev_extra2,ev_extra3,ev_extra4}'::text[]) c);
    v_bytes    text := (select string_agg(format('coalesce(octet_length(%s), 0)', c), ' + ')
                        from unnest('{ev_type,ev_data,ev_extra1,ev_extra2,ev_extra3,ev_extra4}'::text[]) c);
    v_extents  text;
begin
    if i_max_slices is null or i_max_slices < 1 then
        perform pgque.refuse_value('a plan cannot have %s slices', i_max_slices::text,
                                   'Ask for 1 or more.');
    end if;

    select string_agg(format(
        'select %L as tbl, %s as filenode, count(*) as events, '
        '(min(ctid)::text::point)[0]::bigint as lo, (max(ctid)::text::point)[0]::bigint as hi, '
        'array_remove(array[%s], null) as cols, '
        'coalesce(sum(octet_length(ev_data)), 0) as payloads, sum(%s) as bytes, '
        'min(ev_time) as oldest, max(ev_time) as newest from %s where %s',
        t, pg_relation_filenode(t), v_set, v_bytes, t, i_where), ' union all ')
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
        'select (row_number() over (order by tbl, first))::integer, concat($3, s.rows), '
        '       b.events, s.rows, cols, b.payloads, b.bytes, b.oldest, b.newest '
        'from extent, step, '
        '     (select sum(events)::bigint as events, sum(payloads)::bigint as payloads, '
        '             sum(bytes)::bigint as bytes, min(oldest) as oldest, max(newest) as newest '
        '      from extent) b, '
        '     generate_series(lo, hi, blocks) first, '
        '     pgque.slice_from(tbl, filenode, $2, first, least(first + blocks, hi + 1)) s (rows)',
        v_extents)
    using i_max_slices, i_where,
          'select ev_id, ev_time, ev_txid::text::bigint as ev_txid, ev_retry, ev_type, ev_data, '
          'ev_extra1, ev_extra2, ev_extra3, ev_extra4 from ';
end;
$$;

-- Returns the FROM and WHERE clauses of one slice. The conditions are in a CASE, for which no index can
-- be used, so the planner reads exactly the range of blocks.
create or replace function pgque.slice_from(
    i_table text, i_filenode oid, i_where text, i_first bigint, i_end bigint)
returns text
language plpgsql immutable security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return format(
    '%s where ctid >= %L::tid and ctid < %L::tid and case when %s then true end '
    'and pgque.check_filenode(%L, %s)',
    i_table, format('(%s,0)', i_first), format('(%s,0)', i_end), i_where, i_table, i_filenode);
end;
$$;

-- Returns true while a table is the one that a plan was made for; otherwise raises an error. It is a
-- one-time filter in the slice's WHERE: it runs once per read, when the table is locked.
create or replace function pgque.check_filenode(i_table text, i_filenode bigint)
returns boolean
language plpgsql stable set search_path = pgque, pg_catalog, pg_temp as $$
begin
    if pg_relation_filenode(i_table) is distinct from i_filenode::oid then
        raise exception '% was truncated or rewritten after this read was planned', i_table
            using errcode = 'PQ008',
                  hint = 'The batch was finished meanwhile, or the table was rewritten (VACUUM '
                         'FULL, CLUSTER): plan the read again.';
    end if;
    return true;
end;
$$;
