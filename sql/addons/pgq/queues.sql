-- Queues and their settings under PgQ's names.

-- Creates a queue, with views for its event tables. Returns 1, or 0 if it existed.
-- locks: those of pgque.create_queue and make_event_views. writes: the same.
create or replace function pgq.create_queue(i_queue_name text)
returns integer
language plpgsql security definer
as $$
declare
    v_created integer;
begin
    v_created := pgque.create_queue(i_queue_name);
    perform pgq.make_event_views(q.queue_id)
    from pgque.queue q
    where q.queue_name = i_queue_name;
    return v_created;
end;
$$;

-- Sets the rights on a queue's event tables and views anew.
-- locks: those of make_event_views. writes: the same.
create or replace function pgq.grant_perms(x_queue_name text)
returns integer
language plpgsql security definer
as $$
begin
    perform pgque.grant_perms(x_queue_name);
    perform pgq.make_event_views(q.queue_id)
    from pgque.queue q
    where q.queue_name = x_queue_name;
    return 1;
end;
$$;

-- Makes the views and rights of all queues anew. Returns the number of queues whose views were
-- missing. The installation calls it last.
-- locks: those of make_event_views. writes: the same.
create or replace function pgq.upgrade_schema()
returns integer
language plpgsql security definer
as $$
begin
    return (select coalesce(sum(pgq.make_event_views(q.queue_id)), 0) from pgque.queue q);
end;
$$;

-- UPDATE of the view pgq.queue: each changed column is a parameter for set_queue_config. The other
-- columns cannot be changed, because they describe what the engine did.
-- locks: the queue's row. writes: queue, queue_extra, the catalog.
create or replace function pgq.change_queue()
returns trigger
language plpgsql security definer
as $$
declare
    c_parameters constant text[] := array[
        'rotation_period', 'external_ticker', 'disable_insert', 'ticker_paused',
        'ticker_max_count', 'ticker_max_lag', 'ticker_idle_period'];
    v_column record;
begin
    for v_column in
        select substr(n.key, 7) as name, n.value
        from jsonb_each_text(to_jsonb(new)) n
        join jsonb_each_text(to_jsonb(old)) o on o.key = n.key
        where n.value is distinct from o.value
          and n.key <> 'queue_per_tx_limit'
    loop
        if v_column.name <> all (c_parameters) or v_column.value is null then
            raise exception using
                errcode = 'PQ005',
                message = format('pgq.queue.queue_%s cannot become %s', v_column.name,
                                 coalesce(v_column.value, 'null')),
                hint = format('These columns take a value: queue_per_tx_limit, queue_%s.', array_to_string(c_parameters, ', queue_'));
        end if;
        perform pgque.set_queue_config(old.queue_name, v_column.name, v_column.value);
    end loop;
    if new.queue_per_tx_limit is distinct from old.queue_per_tx_limit then
        delete from pgq.queue_extra x where x.queue_id = old.queue_id;
        insert into pgq.queue_extra (queue_id, per_tx_limit)
        select old.queue_id, new.queue_per_tx_limit
        where new.queue_per_tx_limit is not null;
    end if;
    return new;
end;
$$;

create or replace trigger change_queue
instead of update on pgq.queue
for each row
execute function pgq.change_queue();
