-- Functions over the tables of one queue. Each queue has its own, because their plans are cached: planning
-- a statement that names a queue's tables takes longer than running it (docs/decisions/0011). Those of
-- queue 0, which has no tables, are templates: the functions of a queue are copies with its number.
-- Only functions that have locked the queue or the consumer call them. Their settings produce plans that
-- stay good when the tables grow.

-- Publishes to an SP queue: inserts an entry after the last one.
-- locks: none. writes: the half of the entries.
create or replace function qgres.sp_publish_0(
    i_half smallint, i_first bigint, i_entry qgres.queue_entry)
returns bigint
language plpgsql
as $$
declare
    v_number bigint;
begin
    if i_half = 0 then
        insert into qgres.sp_entry_0_0 as new (sequence_number, bytea, jsonb, text)
        values (coalesce((select e.sequence_number from qgres.sp_entry_0_0 e
                          order by e.sequence_number desc limit 1) + 1, i_first),
                i_entry.bytea, i_entry.jsonb, i_entry.text)
        on conflict do nothing returning new.sequence_number into strict v_number;
    else
        insert into qgres.sp_entry_0_1 as new (sequence_number, bytea, jsonb, text)
        values (coalesce((select e.sequence_number from qgres.sp_entry_0_1 e
                          order by e.sequence_number desc limit 1) + 1, i_first),
                i_entry.bytea, i_entry.jsonb, i_entry.text)
        on conflict do nothing returning new.sequence_number into strict v_number;
    end if;
    return v_number;
end;
$$;

-- Moves a consumer of an SP queue and returns the entries that it passed. Numbers have no gaps and
-- become visible in order, so the end of the page follows from its beginning. _build_functions makes
-- two more that read one half each, so that a session that has left the other one does not keep it from being
-- emptied.
-- locks: none. writes: the half of the positions that has the consumer's.
create or replace function qgres.sp_consume_0(
    i_consumer qgres._consumer, i_first bigint, i_limit integer)
returns setof qgres._sp_entry
language plpgsql
set enable_seqscan = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_after  bigint;
    v_upto   bigint;
begin
    v_after := greatest(
        i_consumer.base_number,
        (select p.upto_number
         from (select * from qgres.sp_position_0_0 union all select * from qgres.sp_position_0_1) p
         where p.consumer_id = i_consumer.consumer_id order by p.after_number desc limit 1));
    v_upto := least(
        v_after + i_limit,
        greatest(i_first - 1, (
            select e.sequence_number
            from (select * from qgres.sp_entry_0_0 union all select * from qgres.sp_entry_0_1) e
            order by e.sequence_number desc limit 1)));
    if v_upto > v_after and i_consumer.half = 0 then
        insert into qgres.sp_position_0_0
        values (i_consumer.consumer_id, v_after, v_upto) on conflict do nothing;
    elsif v_upto > v_after then
        insert into qgres.sp_position_0_1
        values (i_consumer.consumer_id, v_after, v_upto) on conflict do nothing;
    else
        return;
    end if;
    return query
    select e.*
    from (select * from qgres.sp_entry_0_0 union all select * from qgres.sp_entry_0_1) e
    where e.sequence_number > v_after and e.sequence_number <= v_upto
    order by e.sequence_number;
end;
$$;

-- Adds to an SR queue. It locks the table in a separate block, which may find that the table was
-- dropped. The row is inserted outside of it, because each block that writes takes a transaction id.
-- locks: none beyond the insert's own. writes: the half of the entries.
create or replace function qgres.sr_add_0(i_half smallint, i_entry qgres.queue_entry)
returns void
language plpgsql
as $$
begin
    begin
        if i_half = 0 then
            perform from qgres.sr_entry_0_0 where false;
        else
            perform from qgres.sr_entry_0_1 where false;
        end if;
    exception
        when undefined_table then
            perform qgres._refuse_dropped(split_part('sr_entry_0_0', '_', 3)::integer);
    end;
    if i_half = 0 then
        insert into qgres.sr_entry_0_0 (bytea, jsonb, text)
        values (i_entry.bytea, i_entry.jsonb, i_entry.text);
    else
        insert into qgres.sr_entry_0_1 (bytea, jsonb, text)
        values (i_entry.bytea, i_entry.jsonb, i_entry.text);
    end if;
end;
$$;

-- Returns up to i_limit entries of an SR queue that are visible in the later snapshot of a position and
-- not in the earlier one. The search begins at the oldest transaction that the earlier one left open and
-- the later one sees, or after the earlier one, so a long transaction costs nothing.
-- Without a later snapshot it returns entries that this transaction added and has not removed: they are
-- in no snapshot yet.
create or replace function qgres.sr_page_0(i_position qgres._sr_position, i_limit bigint)
returns setof qgres._sr_entry
language plpgsql
set enable_seqscan = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_low  xid8 := pg_current_xact_id_if_assigned();
    v_id   bigint := case when i_position.own_txid = v_low then i_position.own_id else 0 end;
begin
    if i_position.until_snapshot is null then
        return query
        select e.*
        from (select * from qgres.sr_entry_0_0 union all select * from qgres.sr_entry_0_1) e
        where e.entry_txid = v_low and e.entry_id > v_id
        order by e.entry_txid, e.entry_id limit i_limit;
        return;
    end if;
    v_low := coalesce(
        i_position.last_txid,
        (select min(x::text::bigint)::text::xid8
         from pg_snapshot_xip(i_position.after_snapshot) x
         where pg_visible_in_snapshot(x, i_position.until_snapshot)),
        pg_snapshot_xmax(i_position.after_snapshot));
    v_id := coalesce(i_position.last_id, 0);
    return query
    select e.*
    from (select * from qgres.sr_entry_0_0 union all select * from qgres.sr_entry_0_1) e
    where (e.entry_txid, e.entry_id) > (v_low, v_id)
      and e.entry_txid < pg_snapshot_xmax(i_position.until_snapshot)
      and pg_visible_in_snapshot(e.entry_txid, i_position.until_snapshot)
      and not pg_visible_in_snapshot(e.entry_txid, i_position.after_snapshot)
      and (e.entry_txid = i_position.own_txid and e.entry_id <= i_position.own_id) is not true
    order by e.entry_txid, e.entry_id limit i_limit;
end;
$$;

-- The newest row of an SR queue's log of positions.
create or replace function qgres.sr_removed_0()
returns qgres._sr_position
language plpgsql
set enable_seqscan = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_position qgres._sr_position;
begin
    select p.* into v_position
    from (select * from qgres.sr_position_0_0 union all select * from qgres.sr_position_0_1) p
    order by p.pos_seq desc limit 1;
    if not found then
        raise exception using
            errcode = 'serialization_failure',
            message = 'the position of the queue is not in this transaction''s snapshot',
            hint = 'The transaction began before the position was moved: roll back and try again.';
    end if;
    return v_position;
end;
$$;

-- Writes the next position of an SR queue. In REPEATABLE READ, a position that the snapshot does not see
-- makes this one a serialization failure, because its number is taken.
-- locks: none. writes: the half of the positions.
create or replace function qgres.sr_move_0(i_half smallint, i_position qgres._sr_position)
returns void
language plpgsql
as $$
begin
    i_position.pos_seq := i_position.pos_seq + 1;
    if i_half = 0 then
        insert into qgres.sr_position_0_0 select i_position.* on conflict do nothing;
    else
        insert into qgres.sr_position_0_1 select i_position.* on conflict do nothing;
    end if;
end;
$$;

-- Removes and returns up to i_limit entries of an SR queue: first those between the two snapshots of the
-- position, then those since, and last those of this transaction. A page that is not full has reached
-- the end: the position is then the later snapshot. The entries of a transaction that removed some of its
-- own are in the next range, where own_txid leaves those out; when that range is finished, the next
-- transaction may take the place. A call that finds nothing writes nothing, unless it finishes a range.
-- locks: none. writes: the half of the positions.
create or replace function qgres.sr_remove_0(i_half smallint, i_limit bigint)
returns table (bytea bytea, jsonb jsonb, text text)
language plpgsql
as $$
declare
    v_new       qgres._sr_position%rowtype;
    v_entry     qgres._sr_entry;
    v_is_fresh  boolean := false;
    v_is_moved  boolean := false;
begin
    v_new := qgres.sr_removed_0();
    while i_limit > 0 and not v_is_fresh loop
        v_is_fresh := v_new.until_snapshot is null;
        v_is_moved := v_is_moved or not v_is_fresh;
        v_new.until_snapshot := coalesce(v_new.until_snapshot, pgque.tick_snapshot());
        for v_entry in select p.* from qgres.sr_page_0(v_new, i_limit) p loop
            i_limit := i_limit - 1;
            v_is_moved := true;
            v_new.last_txid := v_entry.entry_txid;
            v_new.last_id := v_entry.entry_id;
            bytea := v_entry.bytea;
            jsonb := v_entry.jsonb;
            text := v_entry.text;
            return next;
        end loop;
        if i_limit > 0 then
            v_new.after_snapshot := v_new.until_snapshot;
            v_new.until_snapshot := null;
            v_new.last_txid := null;
            v_new.last_id := null;
        end if;
    end loop;
    if i_limit > 0 then
        if v_new.own_txid is distinct from pg_current_xact_id_if_assigned() then
            v_is_moved := v_is_moved or v_new.own_txid is not null;
            v_new.own_txid := null;
            v_new.own_id := null;
        end if;
        for v_entry in select p.* from qgres.sr_page_0(v_new, i_limit) p loop
            v_is_moved := true;
            v_new.own_txid := v_entry.entry_txid;
            v_new.own_id := v_entry.entry_id;
            bytea := v_entry.bytea;
            jsonb := v_entry.jsonb;
            text := v_entry.text;
            return next;
        end loop;
    end if;
    if v_is_moved then
        perform qgres.sr_move_0(i_half, v_new);
    end if;
end;
$$;

-- Lists the functions that were generated for a queue.
create or replace function qgres._queue_functions(i_queue_id integer)
returns setof regprocedure
language sql stable set search_path = qgres, pg_catalog, pg_temp
as $$
    select p.oid::regprocedure
    from pg_proc p
    where p.pronamespace = 'qgres'::regnamespace
      and p.proname ~ format('^s[pr]_[a-z]+[01]?_%s$', i_queue_id);
$$;

-- Creates the functions of a queue, or replaces them: copies of the templates with its number in the
-- names. Those that read half 0 or 1 alone have its number in their name, too.
-- locks: none. writes: the catalog.
create or replace function qgres._build_functions(i_queue qgres._queue)
returns void
language plpgsql set search_path = qgres, pg_catalog, pg_temp
as $$
declare
    -- Both halves of a table, of which one is chosen.
    c_both      constant text := e'\\(select \\* from (\\S+_0_)0 union all select \\* from \\S+_0_1\\)';
    v_text      text;
    v_function  regprocedure;
begin
    for v_text in
        select regexp_replace(
            case when h.half is null then t.definition
                 else replace(regexp_replace(t.definition, c_both, format(e'\\1%s', h.half), 'g'),
                              'sp_consume_0', format('sp_consume%s_0', h.half)) end,
            e'\\m(s[pr]_[a-z]+[01]?)_0(_[01])?\\M', format(e'\\1_%s\\2', i_queue.queue_id), 'g')
        from qgres._queue_functions(0) f
        cross join lateral pg_get_functiondef(f) t(definition)
        cross join (values (null), (0), (1)) h(half)
        where f::text ~ case i_queue.queue_type when 'Serial Publisher' then 'sp_' else 'sr_' end
          and (h.half is null or f::text ~ 'sp_consume_0')
    loop
        execute v_text;
    end loop;
    for v_function in select f from qgres._queue_functions(i_queue.queue_id) f loop
        execute format('revoke all on function %s from public', v_function);  -- quoted: by regprocedure
    end loop;
end;
$$;
