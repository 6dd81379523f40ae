-- Functions that are generated for each queue, because their plans are cached: to plan a statement that
-- names a queue's tables takes longer than to run it. Only the functions below call them, which have
-- locked the queue or the consumer. Their settings make plans that stay right when the tables grow. They name both halves wherever that gives the same answer as the
-- right one: the newest position and the last number are the highest of both.

-- Lists the functions that were generated for a queue.
-- locks: none. writes: nothing.
create or replace function qgres._queue_functions(i_queue_id integer)
returns setof regprocedure
language sql stable
set search_path = qgres, pg_catalog, pg_temp
as $$
    select p.oid::regprocedure
    from pg_proc p
    where p.pronamespace = 'qgres'::regnamespace
      and p.proname ~ format('^s[pr]_[a-z]+_%s$', i_queue_id);
$$;

-- Creates the function that says where a consumer of an SP queue stands, and the last number of the
-- queue. It is inlined into the statements that use it.
-- locks: none. writes: the catalog.
create or replace function qgres._build_positions_function(i_queue_id integer)
returns void
language plpgsql
set search_path = qgres, pg_catalog, pg_temp
as $$
begin
    execute format(  -- quoted: the queue's number
        $sql$
        create or replace function qgres.sp_positions_%1$s(
            i_consumer_id integer, i_base bigint, i_first bigint)
        returns table (position_number bigint, last_number bigint) language sql stable as $body$
            select greatest(
                       i_base,
                       (select p.upto_number from qgres.sp_position_%1$s_0 p
                        where p.consumer_id = i_consumer_id order by p.after_number desc limit 1),
                       (select p.upto_number from qgres.sp_position_%1$s_1 p
                        where p.consumer_id = i_consumer_id order by p.after_number desc limit 1)),
                   greatest(
                       i_first - 1,
                       (select e.sequence_number from qgres.sp_entry_%1$s_0 e
                        order by e.sequence_number desc limit 1),
                       (select e.sequence_number from qgres.sp_entry_%1$s_1 e
                        order by e.sequence_number desc limit 1))
        $body$
        $sql$, i_queue_id);
end;
$$;

-- Creates the function that publishes to an SP queue: it inserts an entry after the last one.
-- locks: none. writes: the catalog.
create or replace function qgres._build_publish_function(i_queue_id integer)
returns void
language plpgsql
set search_path = qgres, pg_catalog, pg_temp
as $$
begin
    execute format(  -- quoted: the queue's number
        $sql$
        create or replace function qgres.sp_publish_%1$s(
            i_half smallint, i_first bigint, i_entry qgres.queue_entry)
        returns bigint language plpgsql as $body$
        declare
            v_number bigint;
        begin
            if i_half = 0 then
                insert into qgres.sp_entry_%1$s_0 as new (sequence_number, bytea, jsonb, text)
                values (coalesce((select e.sequence_number from qgres.sp_entry_%1$s_0 e
                                  order by e.sequence_number desc limit 1) + 1, i_first),
                        i_entry.bytea, i_entry.jsonb, i_entry.text)
                on conflict do nothing returning new.sequence_number into strict v_number;
            else
                insert into qgres.sp_entry_%1$s_1 as new (sequence_number, bytea, jsonb, text)
                values (coalesce((select e.sequence_number from qgres.sp_entry_%1$s_1 e
                                  order by e.sequence_number desc limit 1) + 1, i_first),
                        i_entry.bytea, i_entry.jsonb, i_entry.text)
                on conflict do nothing returning new.sequence_number into strict v_number;
            end if;
            return v_number;
        end;
        $body$
        $sql$, i_queue_id);
end;
$$;

-- Creates the function that moves a consumer of an SP queue and returns the entries that it passed.
-- Numbers have no gaps and become visible in order, so the end of the page follows from its beginning.
-- locks: none. writes: the catalog.
create or replace function qgres._build_consume_function(i_queue_id integer)
returns void
language plpgsql
set search_path = qgres, pg_catalog, pg_temp
as $$
begin
    execute format(  -- quoted: the queue's number
        $sql$
        create or replace function qgres.sp_consume_%1$s(
            i_consumer qgres._consumer, i_first bigint, i_limit integer)
        returns setof qgres._sp_entry language plpgsql
        set enable_seqscan = off set enable_bitmapscan = off
        set plan_cache_mode = force_generic_plan as $body$
        declare
            v_after  bigint;
            v_upto   bigint;
        begin
            select p.position_number, least(p.position_number + i_limit, p.last_number)
            into v_after, v_upto
            from qgres.sp_positions_%1$s(i_consumer.consumer_id, i_consumer.base_number, i_first) p;
            if v_upto > v_after and i_consumer.half = 0 then
                insert into qgres.sp_position_%1$s_0
                values (i_consumer.consumer_id, v_after, v_upto) on conflict do nothing;
            elsif v_upto > v_after then
                insert into qgres.sp_position_%1$s_1
                values (i_consumer.consumer_id, v_after, v_upto) on conflict do nothing;
            else
                return;
            end if;
            return query
            select e.* from qgres.sp_entry_%1$s_0 e
            where e.sequence_number > v_after and e.sequence_number <= v_upto
            union all
            select e.* from qgres.sp_entry_%1$s_1 e
            where e.sequence_number > v_after and e.sequence_number <= v_upto
            order by 1;
        end;
        $body$
        $sql$, i_queue_id);
end;
$$;

-- Creates the function that adds to an SR queue.
-- locks: none. writes: the catalog.
create or replace function qgres._build_add_function(i_queue_id integer)
returns void
language plpgsql
set search_path = qgres, pg_catalog, pg_temp
as $$
begin
    execute format(  -- quoted: the queue's number
        $sql$
        create or replace function qgres.sr_add_%1$s(i_half smallint, i_entry qgres.queue_entry)
        returns void language plpgsql as $body$
        begin
            if i_half = 0 then
                insert into qgres.sr_entry_%1$s_0 (bytea, jsonb, text)
                values (i_entry.bytea, i_entry.jsonb, i_entry.text);
            else
                insert into qgres.sr_entry_%1$s_1 (bytea, jsonb, text)
                values (i_entry.bytea, i_entry.jsonb, i_entry.text);
            end if;
        end;
        $body$
        $sql$, i_queue_id);
end;
$$;

-- Creates the function that returns up to i_limit entries of an SR queue behind a place that are
-- visible in one snapshot and not in another, or, without the later snapshot, those that this
-- transaction added behind a place. The search begins at i_low, so a transaction that is open for long
-- costs nothing.
-- locks: none. writes: the catalog.
create or replace function qgres._build_page_function(i_queue_id integer)
returns void
language plpgsql
set search_path = qgres, pg_catalog, pg_temp
as $$
begin
    execute format(  -- quoted: the queue's number
        $sql$
        create or replace function qgres.sr_page_%1$s(
            i_position qgres._sr_position, i_low xid8, i_id bigint, i_limit bigint)
        returns setof qgres._sr_entry language plpgsql
        set enable_seqscan = off set enable_bitmapscan = off
        set plan_cache_mode = force_generic_plan as $body$
        begin
            if i_position.until_snapshot is null then
                return query
                select e.* from (select * from qgres.sr_entry_%1$s_0
                                 union all select * from qgres.sr_entry_%1$s_1) e
                where e.entry_txid = i_low and e.entry_id > i_id
                order by e.entry_txid, e.entry_id limit i_limit;
                return;
            end if;
            return query
            select e.* from (select * from qgres.sr_entry_%1$s_0
                             union all select * from qgres.sr_entry_%1$s_1) e
            where (e.entry_txid, e.entry_id) > (i_low, i_id)
              and e.entry_txid < pg_snapshot_xmax(i_position.until_snapshot)
              and pg_visible_in_snapshot(e.entry_txid, i_position.until_snapshot)
              and not pg_visible_in_snapshot(e.entry_txid, i_position.after_snapshot)
              and (e.entry_txid = i_position.own_txid and e.entry_id <= i_position.own_id) is not true
            order by e.entry_txid, e.entry_id limit i_limit;
        end;
        $body$
        $sql$, i_queue_id);
end;
$$;

-- Creates the functions that read and write the log of positions of an SR queue.
-- locks: none. writes: the catalog.
create or replace function qgres._build_removal_functions(i_queue_id integer)
returns void
language plpgsql
set search_path = qgres, pg_catalog, pg_temp
as $$
begin
    execute format(  -- quoted: the queue's number
        $sql$
        create or replace function qgres.sr_removed_%1$s()
        returns qgres._sr_position language plpgsql
        set enable_seqscan = off set enable_bitmapscan = off
        set plan_cache_mode = force_generic_plan as $body$
        declare
            v_position qgres._sr_position;
        begin
            select p.* into v_position
            from (select * from qgres.sr_position_%1$s_0
                  union all select * from qgres.sr_position_%1$s_1) p
            order by p.pos_seq desc limit 1;
            return v_position;
        end;
        $body$;
        create or replace function qgres.sr_move_%1$s(
            i_half smallint, i_position qgres._sr_position)
        returns void language plpgsql as $body$
        begin
            if i_half = 0 then
                insert into qgres.sr_position_%1$s_0 select i_position.* on conflict do nothing;
            else
                insert into qgres.sr_position_%1$s_1 select i_position.* on conflict do nothing;
            end if;
        end;
        $body$
        $sql$, i_queue_id);
end;
$$;

-- Creates the functions of a queue. An installation creates them again.
-- locks: none. writes: the catalog.
create or replace function qgres._build_functions(i_queue qgres._queue)
returns void
language plpgsql
set search_path = qgres, pg_catalog, pg_temp
as $$
declare
    v_function regprocedure;
begin
    if i_queue.queue_type = 'Serial Publisher' then
        perform qgres._build_positions_function(i_queue.queue_id);
        perform qgres._build_publish_function(i_queue.queue_id);
        perform qgres._build_consume_function(i_queue.queue_id);
    else
        perform qgres._build_add_function(i_queue.queue_id);
        perform qgres._build_page_function(i_queue.queue_id);
        perform qgres._build_removal_functions(i_queue.queue_id);
    end if;
    for v_function in select f from qgres._queue_functions(i_queue.queue_id) f loop
        execute format('revoke all on function %s from public', v_function);  -- quoted: by regprocedure
    end loop;
end;
$$;
