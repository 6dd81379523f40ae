-- Creates a queue: its event tables, id sequence, functions and first tick. Returns 1, or 0 if it
-- existed.
-- locks: the new queue's row. writes: queue, tick, tick_state, the catalog.
create or replace function pgque.create_queue(i_queue_name text)
returns integer
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_id integer;
begin
    if coalesce(octet_length(i_queue_name), 0) not between 1 and 57 then
        raise exception using
            errcode = 'PQ005',
            message = case
                when i_queue_name is null then 'the queue name is null'
                else format('a queue name has 1 to 57 bytes, "%s" has %s',
                            i_queue_name, octet_length(i_queue_name)) end,
            hint = 'The name is part of the notification channel pgque_<name>, '
                   'which PostgreSQL limits to 63 bytes.';
    end if;

    v_id := nextval(pg_get_serial_sequence('pgque.queue', 'queue_id'));
    insert into pgque.queue (
        queue_id, queue_name, queue_data_pfx, queue_event_seq, queue_insert_sql)
    values (
        v_id, i_queue_name, format('pgque.event_%s', v_id), format('pgque.event_%s_id_seq', v_id),
        format('select pgque.event_%s_insert($1, $2, $3, $4, $5, $6)', v_id))
    on conflict (queue_name) do nothing;
    if not found then
        return 0;
    end if;

    perform pgque.create_event_tables(v_id);
    perform pgque.grant_perms(i_queue_name);
    perform pgque.build_queue_functions(v_id);
    perform pgque.build_insert_dispatch();
    perform pgque.check_tick_half();
    insert into pgque.tick_log (
        tick_queue, tick_id, tick_time, tick_snapshot, tick_event_seq, half)
    select v_id, 1, clock_timestamp(), pgque.tick_snapshot(), 0, l.half
    from pgque.log l
    where l.log_name = 'tick';
    insert into pgque.tick_state (queue_id) values (v_id);
    return 1;
end;
$$;

-- Creates the id sequence, the parent table and its three children. Autovacuum is off because
-- TRUNCATE empties these tables and leaves vacuum nothing to do.
-- locks: none. writes: the catalog.
create or replace function pgque.create_event_tables(i_queue_id integer)
returns void
language plpgsql
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_parent text := format('event_%s', i_queue_id);
    v_seq    text := format('event_%s_id_seq', i_queue_id);
    v_child  text;
begin
    execute format('create sequence pgque.%I', v_seq);
    execute format('create table pgque.%I (like pgque.event_template)', v_parent);

    for v_nr in 0..2 loop
        v_child := format('%s_%s', v_parent, v_nr);
        execute format(
            'create table pgque.%I () inherits (pgque.%I) '
            'with (autovacuum_enabled = false, toast.autovacuum_enabled = false)',
            v_child, v_parent);
        execute format(
            'alter table pgque.%I '
            'alter column ev_id set default nextval(%L), '
            'alter column ev_time set default now(), '
            'alter column ev_txid set default pg_current_xact_id()',
            v_child, format('pgque.%I', v_seq));
        execute format('create index %I on pgque.%I (ev_txid)',
                       format('%s_txid_idx', v_child), v_child);
    end loop;
end;
$$;

-- Removes a queue with its events, retries, dead letters, scheduled entries and idempotency keys.
-- Without force it refuses while the queue has registered consumers, or dead letters, also those of
-- former consumers. The next compaction removes its ticks and positions.
-- locks: its event tables, exclusively. writes: everything of the queue, the catalog.
create or replace function pgque.drop_queue(x_queue_name text, x_force boolean)
returns integer
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_queue      pgque.queue;
    v_consumers  text;
begin
    loop
        v_queue := pgque.find_queue(x_queue_name);
        perform from pgque.queue q where q.queue_id = v_queue.queue_id for update;
        exit when found;
    end loop;

    select string_agg(format('"%s"', c.co_name), ', ' order by c.co_name) into v_consumers
    from pgque.subscription_base s
    join pgque.consumer c on c.co_id = s.sub_consumer
    where s.sub_queue = v_queue.queue_id;
    if v_consumers is not null and x_force is not true then
        raise exception using
            errcode = 'PQ007',
            message = format('queue "%s" still has consumers: %s', x_queue_name, v_consumers),
            hint = format('Unregister them, or drop all with: select pgque.drop_queue(%L, true);',
                          x_queue_name);
    end if;
    if x_force is not true
       and exists (select from pgque.dead_letter d where d.dl_queue_id = v_queue.queue_id) then
        raise exception using
            errcode = 'PQ007',
            message = format('queue "%s" still has dead letters', x_queue_name),
            hint = format('Replay or purge them, or drop all with: select pgque.drop_queue(%L, true);',
                          x_queue_name);
    end if;

    delete from pgque.retry_queue where ev_queue = v_queue.queue_id;
    delete from pgque.dead_letter where dl_queue_id = v_queue.queue_id;
    delete from pgque.subscription_base where sub_queue = v_queue.queue_id;
    delete from pgque.queue where queue_id = v_queue.queue_id;

    execute format('drop function pgque.%I(text, text, text, text, text, text)',
                   format('event_%s_insert', v_queue.queue_id));
    execute format('drop function pgque.%I(text, text)',
                   format('event_%s_insert_short', v_queue.queue_id));
    execute format('drop function pgque.%I(bigint, text, text, text, text)',
                   format('event_%s_insert_as', v_queue.queue_id));
    execute format('drop function pgque.%I(text, text[])',
                   format('event_%s_insert_bulk', v_queue.queue_id));
    execute format('drop function pgque.%I(xid8, xid8)',
                   format('event_%s_tables', v_queue.queue_id));
    execute format('drop function pgque.%I(xid8, xid8, pg_snapshot, xid8[], integer, timestamptz)',
                   format('event_%s_read', v_queue.queue_id));
    for v_nr in 0..2 loop
        execute format('drop table pgque.%I', format('event_%s_%s', v_queue.queue_id, v_nr));
    end loop;
    execute format('drop table pgque.%I', format('event_%s', v_queue.queue_id));
    execute format('drop sequence pgque.%I', format('event_%s_id_seq', v_queue.queue_id));
    -- Last, because the tables are locked now: no transaction that sent under a key still runs.
    delete from pgque.idem i where i.queue_id = v_queue.queue_id;
    return 1;
end;
$$;

-- The form without force: refuses while the queue has consumers or dead letters.
-- locks: those of drop_queue with force. writes: the same.
create or replace function pgque.drop_queue(x_queue_name text)
returns integer
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return pgque.drop_queue(x_queue_name, false);
end;
$$;
