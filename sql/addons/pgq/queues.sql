-- Queues and their settings under PgQ's names.

-- UPDATE of the view pgq.queue: each changed column is a parameter for set_queue_config. The other
-- columns cannot be changed, because they describe what the engine did.
-- locks: the queue's row. writes: queue, queue_extra, the catalog.
create or replace function pgq.change_queue()
returns trigger
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
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
