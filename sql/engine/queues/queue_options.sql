-- Creates a queue with the parameters of set_queue_config, given as one JSON object. If the queue
-- exists, it gets these parameters and keeps the others, so the call can be repeated. Returns 1, or 0
-- if the queue existed.
-- locks: the queue's row. writes: queue, tick, the catalog.
create or replace function pgque.create_queue(i_queue text, i_options jsonb)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_created  integer;
    v_option   record;
begin
    perform pgque.check_options(i_queue, i_options);
    v_created := pgque.create_queue(i_queue);
    for v_option in select o.key, o.value from jsonb_each_text(i_options) o loop
        perform pgque.set_queue_config(i_queue, v_option.key, v_option.value);
    end loop;
    return v_created;
end;
$$;

-- Lists the options, given as for create_queue, whose values differ from the queue's, with the present
-- and the wanted value. A role that may not set options can check them with it.
create or replace function pgque.different_options(
    i_queue text, i_options jsonb, out param_name text, out present text, out wanted text)
returns setof record
language plpgsql stable security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_queue    pgque.queue := pgque.find_queue(i_queue);
    v_option   record;
    v_differs  boolean;
begin
    perform pgque.check_options(i_queue, i_options);
    for v_option in
        select o.key, o.value, p.param_type, p.param_default
        from jsonb_each_text(i_options) o
        join pgque.queue_parameter p on p.param_name = o.key
        order by o.key
    loop
        param_name := v_option.key;
        begin
            execute format(
                'select q.%1$I, w.value, q.%1$I is distinct from w.value '
                'from pgque.queue q cross join (select (%2$s)::%3$s) w (value) '  -- quoted: from the catalog, or a literal
                'where q.queue_id = $1',
                format('queue_%s', param_name),
                coalesce(quote_literal(v_option.value), v_option.param_default), v_option.param_type)
            into present, wanted, v_differs using v_queue.queue_id;
        exception
            when data_exception then
                perform pgque.refuse_parameter(
                    format('"%s" is not a valid value for %s of queue "%s": %s',
                           v_option.value, param_name, i_queue, sqlerrm));
        end;
        if v_differs then
            return next;
        end if;
    end loop;
end;
$$;

-- Refuses options that are not a JSON object, unknown parameters, and a JSON value of another type than
-- its parameter's, such as a number for a period, which would have no unit. A string is checked when it
-- is converted to the parameter's type.
create or replace function pgque.check_options(i_queue text, i_options jsonb)
returns void
language plpgsql stable set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_wrong text;
begin
    if jsonb_typeof(i_options) is distinct from 'object' then
        v_wrong := format('the options of queue "%s" are not a JSON object: %s', i_queue,
                          coalesce(i_options::text, 'null'));
    else
        select case when p.param_type is null then format('a queue has no parameter "%s"', o.key)
               else format('option %s takes %s, not the JSON %s %s', o.key,
                           case p.param_type when 'integer' then 'a number'
                                             when 'boolean' then 'true or false'
                                             else 'a string' end,
                           jsonb_typeof(o.value), o.value) end
        into v_wrong
        from jsonb_each(i_options) o
        left join pgque.queue_parameter p on p.param_name = o.key
        where p.param_type is null
           or jsonb_typeof(o.value) not in ('string', 'null')
              and (jsonb_typeof(o.value), p.param_type) not in (
                  ('number', 'integer'), ('boolean', 'boolean'))
        limit 1;
    end if;
    if v_wrong is not null then
        perform pgque.refuse_parameter(v_wrong);
    end if;
end;
$$;

-- Stops the ticks of a queue: events can still be sent, and consumers get them after resume_queue.
create or replace function pgque.pause_queue(i_queue text)
returns void
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    perform pgque.set_queue_config(i_queue, 'ticker_paused', 'true');
end;
$$;

-- Resumes the ticks of a paused queue.
create or replace function pgque.resume_queue(i_queue text)
returns void
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    perform pgque.set_queue_config(i_queue, 'ticker_paused', 'false');
end;
$$;
