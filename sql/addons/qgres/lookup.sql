-- Makes an entry from its parts, by position or by name.
create or replace function qgres.queue_entry(
    bytea bytea default null, jsonb jsonb default null, text text default null)
returns qgres.queue_entry
language sql immutable set search_path = qgres, pg_catalog, pg_temp
as $$
    select row($1, $2, $3)::qgres.queue_entry;
$$;

-- Reads the type of a queue from text: SP, SR or a long name, in any case.
create or replace function qgres._queue_type__sanitize(queue_type text)
returns qgres.queue_type
language sql stable strict set search_path = qgres, pg_catalog, pg_temp
as $$
    select case upper($1)
        when 'SP' then 'Serial Publisher'
        when 'SR' then 'Serial Remover'
        else initcap($1) end::qgres.queue_type;
$$;

-- Looks up a queue by its name, in any case. No other function raises the error for an unknown name.
create or replace function qgres.queue__get(queue_name text)
returns qgres.queue
language plpgsql stable set search_path = qgres, pg_catalog, pg_temp
as $$
declare
    v_queue qgres.queue;
begin
    select q.* into v_queue from qgres.queue q where lower(q.queue_name) = lower($1);
    if not found then
        raise exception using
            errcode = 'no_data_found',
            message = format('queue "%s" does not exist', coalesce($1, '<NULL>')),
            hint = 'See the view qgres.queue, or create it with qgres.queue__create.';
    end if;
    return v_queue;
end;
$$;

-- Looks up a queue by its id. No other function raises the error for an unknown id.
create or replace function qgres.queue__get(queue_id integer)
returns qgres.queue
language plpgsql stable set search_path = qgres, pg_catalog, pg_temp
as $$
declare
    v_queue qgres.queue;
begin
    select q.* into v_queue from qgres.queue q where q.queue_id = $1;
    if not found then
        raise exception using
            errcode = 'no_data_found',
            message = format('queue_id %s does not exist', coalesce($1::text, '<NULL>')),
            hint = 'See the view qgres.queue.';
    end if;
    return v_queue;
end;
$$;

-- Returns the id of a queue. It has no SET clause, for speed.
create or replace function qgres.queue__get_id(queue_name text)
returns integer
language plpgsql stable
as $$
declare
    v_id pg_catalog.int4;
begin
    select q.queue_id into v_id
    from qgres.queue q
    where pg_catalog.lower(q.queue_name) operator(pg_catalog.=) pg_catalog.lower($1);
    if not found then
        perform qgres.queue__get($1);
    end if;
    return v_id;
end;
$$;

-- Raises the error for a call on a queue of the other type, or for an unknown queue.
create or replace function qgres._refuse_type(
    i_queue_id integer, i_errcode text, i_message text, i_hint text)
returns void
language plpgsql set search_path = qgres, pg_catalog, pg_temp
as $$
declare
    v_queue qgres.queue := qgres.queue__get(i_queue_id);
begin
    raise exception using
        errcode = i_errcode,
        message = i_message,
        detail = format('queue_id %s is type "%s"', v_queue.queue_id, v_queue.queue_type),
        hint = i_hint;
end;
$$;

-- Locks the row of an SP queue, in the isolation level's newest state. Refuses a queue of the other type.
-- locks: the queue's row, until the transaction ends. writes: nothing.
create or replace function qgres._lock_publisher(i_queue_name text, i_message text, i_hint text)
returns qgres._queue
language plpgsql set search_path = qgres, pg_catalog, pg_temp
as $$
declare
    v_id     integer := qgres.queue__get_id(i_queue_name);
    v_queue  qgres._queue;
begin
    select q.* into v_queue from qgres._queue q where q.queue_id = v_id for no key update;
    if not found then
        perform qgres.queue__get(i_queue_name);
    elsif v_queue.queue_type <> 'Serial Publisher' then
        perform qgres._refuse_type(v_id, 'invalid_parameter_value', i_message, i_hint);
    end if;
    return v_queue;
end;
$$;

-- Raises the error for a queue that was dropped after this transaction looked it up.
create or replace function qgres._refuse_dropped(i_queue_id integer)
returns void
language plpgsql set search_path = qgres, pg_catalog, pg_temp
as $$
begin
    perform qgres.queue__get(i_queue_id);
    raise exception using
        errcode = 'serialization_failure',
        message = format('queue_id %s was dropped, which this transaction''s snapshot does not show',
                         i_queue_id),
        hint = 'Roll back and try again.';
end;
$$;

-- Refuses a negative limit, as LIMIT does.
create or replace function qgres._check_limit(i_limit integer)
returns void
language plpgsql set search_path = qgres, pg_catalog, pg_temp
as $$
begin
    if i_limit < 0 then
        raise exception using
            errcode = 'invalid_row_count_in_limit_clause',
            message = format('row_limit must not be negative, it is %s', i_limit),
            hint = 'Leave it out, or pass null, for all entries.';
    end if;
end;
$$;
