-- Returns the name of a table of a queue, with its schema. Kinds are sp_entry, sp_position, sr_entry
-- and sr_position.
create or replace function qgres._table(i_kind text, i_queue_id integer, i_half integer)
returns text
language sql immutable set search_path = qgres, pg_catalog, pg_temp
as $$
    select format('qgres.%s_%s_%s', i_kind, i_queue_id, i_half);
$$;

-- Lists the tables of a queue, or of one half of it.
create or replace function qgres._tables(i_queue qgres._queue, i_half integer default null)
returns setof text
language sql immutable set search_path = qgres, pg_catalog, pg_temp
as $$
    select qgres._table(format('%s_%s', case i_queue.queue_type when 'Serial Publisher' then 'sp'
                                        else 'sr' end, kind), i_queue.queue_id, half)
    from unnest(array['entry', 'position']) kind, generate_series(0, 1) half
    where half = coalesce(i_half, half);
$$;

-- Creates a queue with its tables; returns its id. Autovacuum is off for them because they are
-- emptied by TRUNCATE, which leaves vacuum nothing to do.
-- locks: none beyond the new row's. writes: _queue, the catalog; sr_position of an SR queue.
create or replace function qgres.queue__create(
    queue_name text, queue_type qgres.queue_type, out queue_id integer)
returns integer
language plpgsql security definer set search_path = qgres, pg_catalog, pg_temp
as $$
declare
    v_queue  qgres._queue;
    v_kind   text;
    v_table  text;
begin
    if queue_name is null or queue_type is null then
        raise exception using
            errcode = 'not_null_violation',
            message = format('the %s of the queue is null',
                             case when $1 is null then 'name' else 'type' end),
            hint = 'Pass a name, and one of the types SP and SR.';
    end if;
    insert into qgres._queue as q (queue_name, queue_type, origin_id)
    select $1, $2, o.origin_id from pgque.origin o
    on conflict (lower(q.queue_name)) do nothing
    returning q.* into v_queue;
    if not found then
        raise exception using
            errcode = 'unique_violation',
            message = format('queue "%s" already exists', queue_name),
            hint = 'Names of queues are case-insensitive.';
    end if;
    foreach v_kind in array array['entry', 'position'] loop
        v_kind := format('%s_%s', case queue_type when 'Serial Publisher' then 'sp' else 'sr' end,
                         v_kind);
        for v_half in 0 .. 1 loop
            v_table := qgres._table(v_kind, v_queue.queue_id, v_half);
            execute format(  -- quoted: made of the queue's number
                'create table %s (like qgres.%I including all) with (autovacuum_enabled = false)',
                v_table, format('_%s', v_kind));
            execute format('revoke all on %s from public', v_table);  -- quoted: a number's
        end loop;
    end loop;
    perform qgres._build_functions(v_queue);
    if queue_type = 'Serial Remover' then
        execute format('insert into %s (pos_seq, after_snapshot) values (1, $1)',  -- quoted: a number's
                       qgres._table('sr_position', v_queue.queue_id, 0))
        using pgque.tick_snapshot();
    end if;
    queue_id := v_queue.queue_id;
end;
$$;

-- The form that takes the type as text: SP, SR or a long name, in any case.
-- locks: those of the other form. writes: the same.
create or replace function qgres.queue__create(
    queue_name text, queue_type text, out queue_id integer)
returns integer
language sql set search_path = qgres, pg_catalog, pg_temp
as $$
    select qgres.queue__create($1, qgres._queue_type__sanitize($2));
$$;

-- Returns all queues, by name.
create or replace function qgres.list_queues()
returns setof qgres.queue
language plpgsql stable set search_path = qgres, pg_catalog, pg_temp
as $$
begin
    return query select q.* from qgres.queue q order by q.queue_name;
end;
$$;

-- Whether a queue has entries that not all consumers have read, or that were not removed. Without
-- consumers, those count that were not read when the last one was dropped.
create or replace function qgres._has_unread(i_queue qgres._queue)
returns boolean
language plpgsql set search_path = qgres, pg_catalog, pg_temp
as $$
begin
    if i_queue.queue_type = 'Serial Remover' then
        return qgres._has_unremoved(i_queue);
    end if;
    return qgres._last_number(i_queue) > qgres._floor(i_queue);
end;
$$;

-- Names what a drop of a queue would lose: consumers or entries. Returns null for nothing.
create or replace function qgres._what_is_left(i_queue qgres._queue)
returns text
language plpgsql set search_path = qgres, pg_catalog, pg_temp
as $$
begin
    if exists (select from qgres._consumer c where c.queue_id = i_queue.queue_id) then
        return 'consumers';
    end if;
    return case when qgres._has_unread(i_queue) then 'entries' end;
end;
$$;

-- Drops a queue. Without force it refuses while the queue has consumers or entries. The tables are
-- locked first, so no entry is added meanwhile.
-- locks: the queue's row and consumers, its tables, exclusively. writes: _queue, _consumer,
-- pgque.snapshot_wait, the catalog.
create or replace function qgres.queue__drop(queue_id integer, force boolean default false)
returns void
language plpgsql security definer set search_path = qgres, pg_catalog, pg_temp
as $$
declare
    v_queue     qgres._queue;
    v_table     text;
    v_left      text;
    v_function  regprocedure;
begin
    if force is not true then
        perform pgque.check_read_committed('queue__drop without force');
    end if;
    -- In the order of a consumer that publishes.
    perform from qgres._consumer c where c.queue_id = $1 for update;
    select q.* into v_queue from qgres._queue q where q.queue_id = $1 for update;
    if not found then
        perform qgres.queue__get(queue_id);
    end if;
    for v_table in select t from qgres._tables(v_queue) t loop
        execute format('lock table %s in access exclusive mode', v_table);  -- quoted: a number's
    end loop;
    v_left := case when force is not true then qgres._what_is_left(v_queue) end;
    if v_left is not null then
        raise exception using
            errcode = 'foreign_key_violation',
            message = format('queue "%s" still has %s', v_queue.queue_name, v_left),
            hint = format('To drop it with them: select qgres.queue__drop(%L, true);',
                          v_queue.queue_name);
    end if;
    delete from qgres._consumer c where c.queue_id = $1;
    delete from qgres._queue q where q.queue_id = $1;
    delete from pgque.snapshot_wait w where w.wait_name = format('qgres %s', $1);
    for v_function in select f from qgres._queue_functions(queue_id) f loop
        execute format('drop function %s', v_function);  -- quoted: by regprocedure
    end loop;
    for v_table in select t from qgres._tables(v_queue) t loop
        execute format('drop table %s', v_table);  -- quoted: made of the queue's number
    end loop;
end;
$$;

-- The form that takes the queue's name.
-- locks: those of the other form. writes: the same.
create or replace function qgres.queue__drop(queue_name text, force boolean default false)
returns void
language sql set search_path = qgres, pg_catalog, pg_temp
as $$
    select qgres.queue__drop(qgres.queue__get_id($1), $2);
$$;
