-- Makes a queue with the parameters of set_queue_config, given as one JSON object. A queue that
-- exists takes them too, and keeps those not named, so that stating what shall be may be repeated.
-- Returns 1, or 0 if it existed.
-- locks: the queue's row. writes: queue, tick, the catalog.
create or replace function pgque.create_queue(i_queue text, i_options jsonb)
returns integer
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_created  integer;
    v_option   record;
begin
    if jsonb_typeof(i_options) is distinct from 'object' then
        perform pgque.refuse_parameter(
            format('the options of queue "%s" are no JSON object: %s', i_queue,
                   coalesce(i_options::text, 'null')));
    end if;

    v_created := pgque.create_queue(i_queue);
    for v_option in
        select o.key, o.value, p.param_type
        from jsonb_each(i_options) o
        left join pgque.queue_parameters() p on p.param_name = o.key
    loop
        perform pgque.check_option_type(v_option.key, v_option.value, v_option.param_type);
        perform pgque.set_queue_config(i_queue, v_option.key, v_option.value #>> '{}');
    end loop;
    return v_created;
end;
$$;

-- Refuses a JSON value of another type than the parameter's, such as a number for a period, whose
-- unit one would have to guess. A string is left to set_queue_config, and so is a parameter that is
-- not known.
-- locks: none. writes: nothing.
create or replace function pgque.check_option_type(i_name text, i_value jsonb, i_type text)
returns void
language plpgsql stable
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_given text := jsonb_typeof(i_value);
begin
    if i_type is null or v_given in ('string', 'null')
       or v_given = 'number' and i_type = 'integer'
       or v_given = 'boolean' and i_type = 'boolean' then
        return;
    end if;
    perform pgque.refuse_parameter(
        format('option %s takes %s, not the JSON %s %s', i_name,
               case i_type when 'integer' then 'a number' when 'boolean' then 'true or false'
                           else 'a string' end,
               v_given, i_value));
end;
$$;

-- Stops the ticks of a queue: events can still be sent, and consumers get them after resume_queue.
-- locks: the queue's row. writes: queue.
create or replace function pgque.pause_queue(i_queue text)
returns void
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    perform pgque.set_queue_config(i_queue, 'ticker_paused', 'true');
end;
$$;

-- Lets a paused queue tick again.
-- locks: the queue's row. writes: queue.
create or replace function pgque.resume_queue(i_queue text)
returns void
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    perform pgque.set_queue_config(i_queue, 'ticker_paused', 'false');
end;
$$;
