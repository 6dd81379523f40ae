-- Creates a queue: its event tables, id sequence, functions and first tick. Returns 1, or 0 if it
-- existed. Producers of other queues continue meanwhile.
-- locks: the new queue's row; pgque.event, against another creation, until the transaction ends.
-- writes: queue, tick, tick_state, the catalog.
create or replace function pgque.create_queue(i_queue_name text)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_id     integer;
    v_seq    text;
    v_child  text;
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

    if exists (select from pgque.queue q where q.queue_name = i_queue_name) then
        return 0;
    end if;
    v_id := nextval(pg_get_serial_sequence('pgque.queue', 'queue_id'));
    v_seq := format('event_%s_id_seq', v_id);
    execute format('create sequence pgque.%I', v_seq);
    insert into pgque.queue (queue_id, queue_name, queue_data_pfx, queue_event_seq, queue_seq)
    values (v_id, i_queue_name, format('pgque.event_%s', v_id), format('pgque.%s', v_seq),
            format('pgque.%s', v_seq)::regclass)
    on conflict (queue_name) do nothing;
    if not found then
        execute format('drop sequence pgque.%I', v_seq);
        return 0;
    end if;

    -- Autovacuum is off because TRUNCATE empties the tables and leaves vacuum nothing to do.
    perform pgque.create_event_parent(v_id);
    for v_nr in 0..2 loop
        v_child := format('event_%s_%s', v_id, v_nr);
        execute format(
            'create table pgque.%I (like pgque.event_template including defaults, '
            'ev_table integer not null default %L) '
            'with (autovacuum_enabled = false, toast.autovacuum_enabled = false)',
            v_child, 4 * v_id + v_nr);
        execute format('alter table pgque.%I alter column ev_id set default nextval(%L)',
                       v_child, format('pgque.%I', v_seq));
        execute format('create index %I on pgque.%I (ev_txid)',
                       format('%s_txid_idx', v_child), v_child);
        execute format('alter table pgque.%I attach partition pgque.%I for values in (%L)',
                       format('event_%s', v_id), v_child, 4 * v_id + v_nr);
    end loop;
    perform pgque.grant_perms(i_queue_name);
    perform pgque.build_functions(v_id);
    perform pgque.check_tick_half();
    insert into pgque.tick_log (
        tick_queue, tick_id, tick_time, tick_snapshot, tick_event_seq, half, left_some)
    select v_id, 1, clock_timestamp(), pgque.tick_snapshot(), 0, l.half, false
    from pgque.log l
    where l.log_name = 'tick';
    insert into pgque.tick_state (queue_id) values (v_id);
    return 1;
end;
$$;

-- Removes a queue with its events, retries, dead letters, scheduled entries and idempotency keys. Without
-- force it refuses while the queue has registered consumers, scheduled entries or dead letters, including
-- those of former consumers; with force too, while tables are captured into it. The next compaction
-- removes its ticks and positions, and maintenance removes its empty event tables. It waits for
-- transactions that use the queue for a minute, or for the session's
-- lock_timeout.
-- locks: its event tables, exclusively. writes: everything of the queue, the catalog.
create or replace function pgque.drop_queue(x_queue_name text, x_force boolean)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_timeout    constant text := current_setting('lock_timeout');
    v_queue      pgque.queue;
    v_left       text;
    v_table      text;
    v_functions  text;
begin
    if v_timeout = '0' then
        perform set_config('lock_timeout', '1min', true);
    end if;
    loop  -- excludes all sessions, including producers whose entries name the queue
        v_queue := pgque.find_queue(x_queue_name);
        perform from pgque.queue q where q.queue_id = v_queue.queue_id for update;
        exit when found;
    end loop;

    v_left := coalesce(
        (select 'consumers: ' || string_agg(format('"%s"', c.co_name), ', ' order by c.co_name)
         from pgque.subscription_base s
         join pgque.consumer c on c.co_id = s.sub_consumer
         where s.sub_queue = v_queue.queue_id),
        (select 'dead letters' from pgque.dead_letter d
         where d.dl_queue_id = v_queue.queue_id limit 1),
        (select 'scheduled events' from pgque.list_scheduled(x_queue_name, 1)));
    if v_left is not null and x_force is not true then
        raise exception 'queue "%" still has %', x_queue_name, v_left
            using errcode = 'PQ007',
                  hint = format('Unregister, replay, purge or cancel them, or drop all with: select '
                                'pgque.drop_queue(%L, true);', x_queue_name);
    end if;

    delete from pgque.retry_queue where ev_queue = v_queue.queue_id;
    delete from pgque.dead_letter where dl_queue_id = v_queue.queue_id;
    delete from pgque.subscription_base where sub_queue = v_queue.queue_id;
    delete from pgque.queue where queue_id = v_queue.queue_id;
    delete from pgque.snapshot_wait where wait_name = format('queue %s', v_queue.queue_id);

    -- A producer that looked up the queue before and waits for the lock is refused by the constraint. A
    -- dump fails at the name; otherwise it would lack the events. Maintenance drops the tables.
    v_table := format('event_%s', v_queue.queue_id);
    execute format('truncate pgque.%I', v_table);
    perform pgque.check_uncaptured(x_queue_name, null);  -- after capture() calls that were running
    execute format('alter table pgque.%I add constraint queue_was_dropped check (false)', v_table);
    execute format('alter table pgque.%I rename to %I', v_table, format('%s_dropped', v_table));
    select string_agg(format('drop function %s', p.oid::regprocedure), '; ')  -- with that of 0.3
    into v_functions
    from pg_proc p
    where p.pronamespace = 'pgque'::regnamespace
      and p.proname in (format('%s_tables', v_table), format('%s_read', v_table));
    execute v_functions;
    -- Last, because the tables are locked by now: no transaction that sent under a key is still running.
    delete from pgque.idem i where i.queue_id = v_queue.queue_id;
    perform set_config('lock_timeout', v_timeout, true);
    return 1;
exception when lock_not_available then
    perform pgque.refuse_locked(format('the drop of "%s"', x_queue_name),
        'Nothing was dropped. End them (also pg_prepared_xacts), or set lock_timeout to wait longer '
        'than a minute.');
    return null;
end;
$$;

-- The form without force: refuses while the queue has consumers or dead letters.
create or replace function pgque.drop_queue(x_queue_name text)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return pgque.drop_queue(x_queue_name, false);
end;
$$;
