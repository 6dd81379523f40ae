-- Sets one parameter of a queue; null resets it to its default. Names as in PgQ, without queue_.
-- locks: the queue's row. writes: queue.
create or replace function pgque.set_queue_config(
    x_queue_name text, x_param_name text, x_param_value text)
returns integer
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_queue    pgque.queue := pgque.find_queue(x_queue_name);
    v_column   text := format('queue_%s', x_param_name);
    v_valid    constant text[] := array[
        'disable_insert', 'external_ticker', 'max_retries', 'rotation_period',
        'ticker_idle_period', 'ticker_max_count', 'ticker_max_lag', 'ticker_paused'];
begin
    if x_param_name is null or x_param_name <> all (v_valid) then
        raise exception using
            errcode = 'PQ005',
            message = format('a queue has no parameter "%s"', coalesce(x_param_name, 'null')),
            hint = format('Parameters are: %s.', array_to_string(v_valid, ', '));
    end if;

    begin
        if x_param_value is null then
            execute format('update pgque.queue set %I = default where queue_id = $1', v_column)
            using v_queue.queue_id;
        else
            execute format('update pgque.queue set %I = %L where queue_id = $1',
                           v_column, x_param_value)
            using v_queue.queue_id;
        end if;
    exception
        when data_exception or check_violation then
            raise exception using
                errcode = 'PQ005',
                message = format('"%s" is no value for %s of queue "%s": %s',
                                 x_param_value, x_param_name, x_queue_name, sqlerrm),
                hint = 'Periods are positive intervals such as ''2 hours'', counts positive '
                       'integers, switches true or false; null resets to the default.';
    end;
    if x_param_name = 'disable_insert' then
        perform pgque.build_insert_functions(v_queue.queue_id);
    end if;
    return 1;
end;
$$;
