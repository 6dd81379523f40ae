-- A queue's event tables under PgQ's names: pgq.event_<id> and its children _0, _1 and _2 are
-- views. Rows inserted into any of them, also by COPY, become events of the queue. They go into the
-- table that is current then, so a name that was looked up before a rotation stays valid.

-- Makes the views of a queue if they are missing, and sets the rights on them. Returns 1, or 0 if
-- they were there. Writers fill the columns that PgQ's insert_event takes, admins all.
-- locks: the queue's event tables, against other schema changes. writes: event_view, the catalog.
create or replace function pgq.make_event_views(i_queue_id integer)
returns integer
language plpgsql
as $$
declare
    v_made  integer;
    v_name  text;
begin
    insert into pgq.event_view (queue_id) values (i_queue_id) on conflict do nothing;
    get diagnostics v_made = row_count;
    foreach v_name in array array[
        format('event_%s', i_queue_id), format('event_%s_0', i_queue_id),
        format('event_%s_1', i_queue_id), format('event_%s_2', i_queue_id)] loop
        if v_made = 1 then
            execute format(
                'create view pgq.%1$I as '
                'select ev_id, ev_time, ev_txid::text::bigint as ev_txid, ev_owner, ev_retry, '
                'ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4 from pgque.%1$I',
                v_name);
            execute format(
                'create trigger insert_event instead of insert on pgq.%I '
                'for each row execute function pgq.insert_row(%L)', v_name, i_queue_id);
        end if;
        execute format('revoke all on pgq.%I from public, pgq_reader, pgq_writer, pgq_admin',
                       v_name);
        execute format('grant select on pgq.%I to pgq_reader', v_name);
        execute format('grant select, insert on pgq.%I to pgq_admin', v_name);
        execute format(
            'grant insert (ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4) '
            'on pgq.%I to pgq_writer', v_name);
    end loop;
    return v_made;
end;
$$;

-- Drops the views of a queue that is being dropped. The event tables are dropped later, by
-- maintenance, which could not do it while views read them. It waits for other transactions that use
-- the views for a second at most, because producers wait behind it.
-- locks: the views, exclusively. writes: the catalog.
create or replace function pgq.drop_event_views()
returns trigger
language plpgsql security definer
set lock_timeout = '1s'
as $$
begin
    execute format(  -- quoted: a number
        'drop view if exists pgq.event_%1$s, pgq.event_%1$s_0, pgq.event_%1$s_1, pgq.event_%1$s_2',
        old.queue_id);
    return null;
exception
    when lock_not_available then
        raise exception using
            errcode = 'object_in_use',
            message = format('an open transaction uses the views pgq.event_%s of the queue',
                             old.queue_id),
            hint = format('Try again when it has ended. Its process: select pid from pg_locks where '
                          'relation::regclass::text ~ ''pgq.event_%s(_|$)'';', old.queue_id);
end;
$$;

create or replace trigger drop_event_views
after delete on pgq.event_view
for each row
execute function pgq.drop_event_views();

-- Sends a row that is inserted into a view of event tables, with one statement, as insert_event
-- does. Only admins may set an id, a time, an owner or a retry count. The transaction is always that
-- of the insert.
-- locks: none beyond the insert's own. writes: the queue's current event table.
create or replace function pgq.insert_row()
returns trigger
language plpgsql security definer
as $$
declare
    v_queue_id  integer := tg_argv[0]::integer;
begin
    if new.ev_txid is not null then
        perform pgque.refuse_value(
            'an event cannot have a given ev_txid: %s', new.ev_txid::text,
            'Leave the column out: events belong to the transaction that inserts them.');
    end if;
    insert into pgque.event as e (
        ev_table, ev_id, ev_time, ev_owner, ev_retry,
        ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4)
    select 4 * q.queue_id + q.queue_cur_table, coalesce(new.ev_id, nextval(q.queue_seq)),
           coalesce(new.ev_time, now()), new.ev_owner, new.ev_retry,
           new.ev_type, new.ev_data, new.ev_extra1, new.ev_extra2, new.ev_extra3, new.ev_extra4
    from pgque.queue q
    where q.queue_id = v_queue_id
      and (not q.queue_disable_insert or current_setting('session_replication_role') = 'replica')
    returning e.ev_id into new.ev_id;
    if not found then
        perform pgque.refuse_insert(q.queue_name) from pgque.queue q where q.queue_id = v_queue_id;
    end if;
    if exists (select from pgq.queue_extra x where x.queue_id = v_queue_id) then
        perform pgq.check_tx_limit(q.queue_name) from pgque.queue q where q.queue_id = v_queue_id;
    end if;
    return new;
end;
$$;

-- Maintenance: makes the views of queues that were created by pgque.create_queue. Returns for how
-- many queues.
-- locks: those of make_event_views. writes: the same.
create or replace function pgq.maint()
returns integer
language plpgsql security definer
as $$
begin
    return (select coalesce(sum(pgq.make_event_views(q.queue_id)), 0)
            from pgque.queue q
            where not exists (select from pgq.event_view v where v.queue_id = q.queue_id));
end;
$$;
