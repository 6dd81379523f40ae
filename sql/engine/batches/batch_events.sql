-- The events between two snapshots: conditions on ev_txid, and the event tables that hold their
-- transactions, which are a range (those that began after the first snapshot) and a list (those in
-- progress at the first). The conditions contain literals, so that the planner sees the values. The
-- tables are looked up, not derived from the rotation: an event is read wherever a producer with an old
-- snapshot or an old table name has put it.
create or replace function pgque.events_between(
    i_queue_id integer, i_prev pg_snapshot, i_cur pg_snapshot,
    out in_range text, out in_list text, out tables text[])
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_first  xid8 := pg_snapshot_xmax(i_prev);
    v_end    xid8 := pg_snapshot_xmax(i_cur);
    v_list   xid8[] := array(select x from pg_snapshot_xip(i_prev) x
                             where pg_visible_in_snapshot(x, i_cur) order by x);
begin
    perform pgque.check_adopted();
    in_range := format('ev_txid >= %L and ev_txid < %L', v_first, v_end);
    if pg_snapshot_xmin(i_cur) < v_end then
        in_range := format('%s and pg_visible_in_snapshot(ev_txid, %L)', in_range, i_cur);
    end if;
    if v_list <> '{}' then
        in_list := format('ev_txid = any (%L::xid8[])', v_list);
        v_first := v_list[1];
    end if;
    execute format('select pgque.%I($1, $2)', format('event_%s_tables', i_queue_id))
    into tables using v_first, v_end;
end;
$$;

-- The condition for the events that a consumer gets: those for everybody, those redelivered to it, and,
-- if it is a slot, only those with its keys.
create or replace function pgque.owner_condition(i_sub pgque.subscription)
returns text
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_owned constant text := format('(ev_owner is null or ev_owner = %s)',
                                    coalesce(i_sub.sub_main, i_sub.sub_id));
begin
    if i_sub.sub_role <> 'slot' then
        return v_owned;
    end if;
    return (select format('%s and pgque.slot_of_key(ev_extra1, %s) = %s%s', v_owned, b.n, b.slot,
                          ' and ev_id > ' || i_sub.page_from)
            from pgque.slot b
            where b.sub_id = i_sub.sub_id);
end;
$$;

-- The same for an open batch, with its owner condition, which excludes events that were set aside.
create or replace function pgque.describe_batch(
    i_batch_id bigint,
    out in_range text, out in_list text, out is_owned text, out tables text[])
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_sub  pgque.subscription := pgque.find_batch(i_batch_id);
    v_b    record;
begin
    v_b := pgque.events_between(
        v_sub.sub_queue,
        (pgque.find_tick(v_sub.sub_queue, v_sub.sub_last_tick)).tick_snapshot,
        (pgque.find_tick(v_sub.sub_queue, v_sub.sub_next_tick)).tick_snapshot);
    tables := v_b.tables;
    in_range := v_b.in_range;
    in_list := v_b.in_list;
    is_owned := concat(pgque.owner_condition(v_sub), (select format(' and ev_id <> all (%L::bigint[])', a.ev_ids)
                                  from pgque.set_aside a
                                  where a.sub_id = v_sub.sub_id and a.batch_id = i_batch_id));
end;
$$;

-- The SELECT of some columns of a batch's events, in any order. Until the batch is finished, it returns
-- the same rows on every connection, except for events that set_events_aside takes out. For a batch
-- without events it only reads the queue's parent table, which is empty.
create or replace function pgque.batch_select(i_batch_id bigint, i_columns text)
returns text
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_b    record := pgque.describe_batch(i_batch_id);
    v_sql  text;
begin
    select string_agg(format('select %s from %s where %s and %s', i_columns, t, c, v_b.is_owned),
                      ' union all ')
    into v_sql
    from unnest(case v_b.tables
        when '{}' then array[format('only pgque.event_%s', (pgque.find_batch(i_batch_id)).sub_queue)]
        else v_b.tables end) t
    cross join unnest(array[v_b.in_range, v_b.in_list]) c
    where c is not null;
    return v_sql;
end;
$$;

-- The SELECT of a batch's events, in order of ev_id.
create or replace function pgque.batch_event_sql(x_batch_id bigint)
returns text
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return concat(pgque.batch_select(
    x_batch_id, 'ev_id, ev_time, ev_txid::text::bigint as ev_txid, ev_retry, ev_type, ev_data, '
                'ev_extra1, ev_extra2, ev_extra3, ev_extra4'), ' order by 1');
end;
$$;

-- The event tables that have, or may have, rows of an open batch.
create or replace function pgque.batch_event_tables(x_batch_id bigint)
returns setof text
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return query select * from unnest((pgque.describe_batch(x_batch_id)).tables);
end;
$$;

-- The events of an open batch, in order of ev_id. A batch that spans fewer than 1000 event ids is found
-- and read by two statements with cached plans. From there on, a plan made for the batch saves more
-- than planning costs. batch_event_sql also handles slots, batches from which events were set aside,
-- positions on the second half of their log, stricter isolation, and databases that are not adopted.
-- JIT is off because event tables have no statistics.
create or replace function pgque.get_batch_events(
    x_batch_id bigint,
    out ev_id bigint, out ev_time timestamptz, out ev_txid bigint, out ev_retry integer,
    out ev_type text, out ev_data text,
    out ev_extra1 text, out ev_extra2 text, out ev_extra3 text, out ev_extra4 text)
returns setof record
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp set jit = off
as $$
declare
    v_b        record;
    v_running  pg_snapshot;
    v_list     xid8[];
begin
    if current_setting('transaction_isolation') = 'read committed' then
        select s.sub_queue, prev.tick_snapshot as prev, cur.tick_snapshot as cur,
               coalesce(s.sub_main, s.sub_id) as owner_id
        into v_b
        from (select *
              from pgque.position_log_0 l
              where l.sub_batch = x_batch_id
              order by l.pos_seq desc
              limit 1) p
        join pgque.subscription_base s on s.sub_id = p.sub_id
        cross join lateral (
            select * from pgque.tick_log_0 t
            where t.tick_queue = s.sub_queue and t.tick_id = p.sub_last_tick
            limit 1) prev
        cross join lateral (
            select * from pgque.tick_log_0 t
            where t.tick_queue = s.sub_queue and t.tick_id = p.sub_next_tick
            limit 1) cur
        where p.next_half = 0
          and not exists (select from pgque.position_log_0 newer
                          where newer.sub_id = p.sub_id and newer.pos_seq > p.pos_seq)
          and cur.tick_event_seq - prev.tick_event_seq < 1000
          and s.sub_role <> 'slot'
          and not exists (select from pgque.set_aside a
                          where a.sub_id = s.sub_id and a.batch_id = x_batch_id)
          and pgque.is_timeline_followed();
    end if;
    if v_b is null then
        return query execute format('%s', pgque.batch_event_sql(x_batch_id));  -- quoted: made there
        return;
    end if;
    if pg_snapshot_xmin(v_b.cur) < pg_snapshot_xmax(v_b.cur) then
        v_running := v_b.cur;
    end if;
    if pg_snapshot_xmin(v_b.prev) < pg_snapshot_xmax(v_b.prev) then
        v_list := array(select x from pg_snapshot_xip(v_b.prev) x
                        where pg_visible_in_snapshot(x, v_b.cur));
    end if;
    return query execute format(  -- quoted: a number
        'select * from pgque.event_%s_read($1, $2, $3, $4, $5)', v_b.sub_queue)
    using pg_snapshot_xmax(v_b.prev), pg_snapshot_xmax(v_b.cur), v_running, v_list, v_b.owner_id;
end;
$$;
