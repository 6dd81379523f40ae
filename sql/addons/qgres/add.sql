-- Adds an entry to an SR queue. Sessions add at the same time. The row has this transaction's id, from
-- which "Remove" knows whether it was there at its last call.
-- locks: none beyond the insert's own. writes: the queue's current table of entries.
create or replace function qgres._add(queue_id integer, entry qgres.queue_entry)
returns void
language plpgsql security definer set search_path = qgres, pg_catalog, pg_temp
as $$
declare
    v_type      qgres.queue_type;
    v_half      smallint;
    v_is_ours   boolean;
begin
    select q.queue_type, q.half, q.origin_id = o.origin_id into v_type, v_half, v_is_ours
    from qgres._queue q
    cross join pgque.origin o
    where q.queue_id = $1;
    if not found or v_type <> 'Serial Remover' then
        perform qgres._refuse_type($1, 'raise_exception',
            'only valid for Serial Remover queues',
            'Perhaps you want to use the "Publish"() function instead?');
    elsif to_regclass(format('qgres.sr_entry_%s_0', queue_id)) is null then
        perform qgres._refuse_dropped(queue_id);
    elsif not v_is_ours then
        perform qgres._adopt(queue_id);
    end if;
    execute format('select qgres.sr_add_%s($1, $2)', queue_id)  -- quoted: a number
    using v_half, entry;
end;
$$;

-- The forms for users: a queue by its id or its name, and the parts of an entry, or one of them.
-- locks: those of _add. writes: the same.
create or replace function qgres.add(queue_id integer, bytea bytea, jsonb jsonb, text text)
returns void
language sql
as $$
    select qgres._add($1, row($2, $3, $4)::qgres.queue_entry);
$$;

-- A form of qgres._add.
create or replace function qgres.add(queue_id integer, bytea bytea)
returns void
language sql
as $$
    select qgres._add($1, row($2, null, null)::qgres.queue_entry);
$$;

-- A form of qgres._add.
create or replace function qgres.add(queue_id integer, jsonb jsonb)
returns void
language sql
as $$
    select qgres._add($1, row(null, $2, null)::qgres.queue_entry);
$$;

-- A form of qgres._add.
create or replace function qgres.add(queue_id integer, text text)
returns void
language sql
as $$
    select qgres._add($1, row(null, null, $2)::qgres.queue_entry);
$$;

-- A form of qgres._add.
create or replace function qgres.add(queue_name text, bytea bytea, jsonb jsonb, text text)
returns void
language sql
as $$
    select qgres._add(qgres.queue__get_id($1), row($2, $3, $4)::qgres.queue_entry);
$$;

-- A form of qgres._add.
create or replace function qgres.add(queue_name text, bytea bytea)
returns void
language sql
as $$
    select qgres._add(qgres.queue__get_id($1), row($2, null, null)::qgres.queue_entry);
$$;

-- A form of qgres._add.
create or replace function qgres.add(queue_name text, jsonb jsonb)
returns void
language sql
as $$
    select qgres._add(qgres.queue__get_id($1), row(null, $2, null)::qgres.queue_entry);
$$;

-- A form of qgres._add.
create or replace function qgres.add(queue_name text, text text)
returns void
language sql
as $$
    select qgres._add(qgres.queue__get_id($1), row(null, null, $2)::qgres.queue_entry);
$$;
