-- Publishes an entry and returns its number: the one after the last, without gaps. A publisher holds
-- the queue's row lock until it commits, so the next one sees the last number, and numbers become
-- visible in their order. Nothing is updated, so no dead rows arise, and a rollback returns the
-- number. In REPEATABLE READ the last number may be newer than the snapshot: then the number is
-- taken, and ON CONFLICT raises a serialization failure.
-- locks: the queue's row, until the transaction ends. writes: the queue's current table of entries;
-- the event table of the queue that logs it.
create or replace function qgres."_Publish"(
    queue_id integer, entry qgres.queue_entry, out sequence_number bigint)
returns bigint
language plpgsql security definer set search_path = qgres, pg_catalog, pg_temp
as $$
declare
    v_queue qgres._queue;
begin
    select q.* into v_queue from qgres._queue q where q.queue_id = $1 for no key update;
    if not found or v_queue.queue_type <> 'Serial Publisher' then
        perform qgres._refuse_type($1, 'invalid_parameter_value',
            '"Publish"() may only be called on Serial Publisher queues',
            'Perhaps you want to use the add() function instead?');
    end if;
    execute format('select qgres.sp_publish_%s($1, $2, $3)', v_queue.queue_id)  -- quoted: a number
    into sequence_number using v_queue.half, v_queue.first_number, entry;
    if v_queue.log_queue is not null then
        perform qgres._log_entry(v_queue.log_queue, sequence_number, entry);
    end if;
end;
$$;

-- The forms for users: a queue by its id or its name, and the parts of an entry, or one of them.
-- locks: those of "_Publish". writes: the same.
create or replace function qgres."Publish"(queue_id integer, bytea bytea, jsonb jsonb, text text,
    out sequence_number bigint)
returns bigint
language sql
as $$
    select qgres."_Publish"($1, row($2, $3, $4)::qgres.queue_entry);
$$;

-- A form of qgres."_Publish".
create or replace function qgres."Publish"(queue_id integer, bytea bytea, out sequence_number bigint)
returns bigint
language sql
as $$
    select qgres."_Publish"($1, row($2, null, null)::qgres.queue_entry);
$$;

-- A form of qgres."_Publish".
create or replace function qgres."Publish"(queue_id integer, jsonb jsonb, out sequence_number bigint)
returns bigint
language sql
as $$
    select qgres."_Publish"($1, row(null, $2, null)::qgres.queue_entry);
$$;

-- A form of qgres."_Publish".
create or replace function qgres."Publish"(queue_id integer, text text, out sequence_number bigint)
returns bigint
language sql
as $$
    select qgres."_Publish"($1, row(null, null, $2)::qgres.queue_entry);
$$;

-- A form of qgres."_Publish".
create or replace function qgres."Publish"(queue_name text, bytea bytea, jsonb jsonb, text text, out
    sequence_number bigint)
returns bigint
language sql
as $$
    select qgres."_Publish"(qgres.queue__get_id($1), row($2, $3, $4)::qgres.queue_entry);
$$;

-- A form of qgres."_Publish".
create or replace function qgres."Publish"(queue_name text, bytea bytea, out sequence_number bigint)
returns bigint
language sql
as $$
    select qgres."_Publish"(qgres.queue__get_id($1), row($2, null, null)::qgres.queue_entry);
$$;

-- A form of qgres."_Publish".
create or replace function qgres."Publish"(queue_name text, jsonb jsonb, out sequence_number bigint)
returns bigint
language sql
as $$
    select qgres."_Publish"(qgres.queue__get_id($1), row(null, $2, null)::qgres.queue_entry);
$$;

-- A form of qgres."_Publish".
create or replace function qgres."Publish"(queue_name text, text text, out sequence_number bigint)
returns bigint
language sql
as $$
    select qgres."_Publish"(qgres.queue__get_id($1), row(null, null, $2)::qgres.queue_entry);
$$;
