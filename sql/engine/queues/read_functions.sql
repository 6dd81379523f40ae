-- Builds the two functions of a queue. event_<n>_tables probes the index of each child for the events
-- of a range of transactions. Its plan is cached when the tables are small, so sequential scans are
-- disabled. event_<n>_read reads a batch. The batch's transactions are parameters, so that it is one
-- statement with a cached plan. The planner knows no values and expects few rows, which is right only
-- for small batches; for those, sequential scans and parallel workers are wrong. A session keeps the
-- plan, about 130 kB per queue, so the statement names the table once and the function has nothing
-- else.
-- locks: none. writes: pg_proc.
create or replace function pgque.build_functions(i_queue_id integer)
returns void
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_tables  text := format('pgque.event_%s_tables', i_queue_id);
    v_read    text := format('pgque.event_%s_read', i_queue_id);
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
        'return pg_catalog.array_remove(array[%s], null); end; $fn$', v_tables, v_probes);
    execute format(  -- quoted: as above
        'create or replace function %s('
        'i_from xid8, i_end xid8, i_running pg_snapshot, i_list xid8[], '
        'i_owner integer, '
        'out ev_id bigint, out ev_time timestamptz, out ev_txid bigint, out ev_retry integer, '
        'out ev_type text, out ev_data text, '
        'out ev_extra1 text, out ev_extra2 text, out ev_extra3 text, out ev_extra4 text) '
        'returns setof record language plpgsql set enable_seqscan = off '
        'set max_parallel_workers_per_gather = 0 set plan_cache_mode = force_generic_plan '
        'as $fn$ begin return query '
        'select e.ev_id, e.ev_time, e.ev_txid::text::bigint, e.ev_retry, e.ev_type, e.ev_data, '
        'e.ev_extra1, e.ev_extra2, e.ev_extra3, e.ev_extra4 from pgque.event_%s e '
        'where (e.ev_txid operator(pg_catalog.>=) i_from '
        'and e.ev_txid operator(pg_catalog.<) i_end '
        'or e.ev_txid operator(pg_catalog.=) any (i_list)) '
        'and (i_running is null or pg_catalog.pg_visible_in_snapshot(e.ev_txid, i_running)) '
        'and (e.ev_owner is null or e.ev_owner operator(pg_catalog.=) i_owner) '
        'order by 1; end; $fn$', v_read, i_queue_id);
    execute format('revoke all on function %s, %s(xid8, xid8, pg_snapshot, xid8[], integer) '  -- quoted: as above
                   'from public', v_tables, v_read);
end;
$$;
