-- Partitioned SP queues: one order for each key instead of one for all entries. Each partition is an SP
-- queue of its own, named <name>#<number>, with numbers without gaps, consumers and a log.

-- Creates an SP queue with partitions, which are the queues <name>#0 and so on. Returns their ids. The
-- number of partitions cannot be changed, because keys would move to other ones. A queue without
-- partitions may not have the name: sessions that create one wait for a row of that name, which is
-- deleted at the end.
-- locks: those of queue__create with two arguments. writes: the same.
create or replace function qgres.queue__create(
    queue_name text, queue_type text, partitions integer)
returns setof integer
language plpgsql security definer
as $$
declare
    v_id    integer;
    v_held  qgres._queue;
begin
    if qgres._queue_type__sanitize(queue_type) is distinct from 'Serial Publisher' then
        raise exception using
            errcode = 'invalid_parameter_value',
            message = 'only "Serial Publisher" queues have partitions',
            hint = 'Entries of a Serial Remover queue have no order to divide: leave partitions out.';
    elsif partitions between 1 and 256 is not true then
        raise exception using
            errcode = 'invalid_parameter_value',
            message = format('partitions must be from 1 to 256, it is %s',
                             coalesce(partitions::text, '<NULL>')),
            hint = 'Each partition is a queue of its own, with four tables.';
    elsif queue_name is null then
        perform qgres.queue__create(queue_name, 'Serial Publisher'::qgres.queue_type);  -- raises the error
    end if;
    insert into qgres._queue as q (queue_name, queue_type, origin_id)
    select $1, 'Serial Publisher', o.origin_id from pgque.origin o
    on conflict (lower(q.queue_name)) do nothing
    returning q.* into v_held;
    if not found then
        raise exception using
            errcode = 'unique_violation',
            message = format('queue "%s" already exists without partitions', queue_name),
            hint = format('Its partitions would be "%1$s#0" and so on. Choose another name, or drop '
                          'the queue first: select qgres.queue__drop(%1$L);', queue_name);
    end if;
    perform qgres._refuse_partitioned(queue_name);
    for v_number in 0 .. partitions - 1 loop
        v_id := qgres.queue__create(format('%s#%s', $1, v_number),
                                    'Serial Publisher'::qgres.queue_type);
        update qgres._queue q set partitions = $3 where q.queue_id = v_id;
        return next v_id;
    end loop;
    delete from qgres._queue q where q.queue_id = v_held.queue_id;
end;
$$;

-- Returns the name of the queue that is a key's partition. A null key has the partition of an empty
-- one.
create or replace function qgres.queue__partition(queue_name text, partition_key text)
returns text
language plpgsql stable security definer
as $$
declare
    v_queue qgres._queue;
begin
    select q.* into v_queue
    from qgres._queue q
    where lower(q.queue_name) = lower(format('%s#0', $1)) and q.partitions is not null;
    if not found then
        raise exception using
            errcode = 'no_data_found',
            message = format('partitioned queue "%s" does not exist', coalesce($1, '<NULL>')),
            hint = 'Create it with: select qgres.queue__create(name, ''SP'', partitions);';
    end if;
    return format('%s#%s', $1, pgque.slot_of_key(coalesce(partition_key, ''), v_queue.partitions));
end;
$$;

-- Publishes an entry to the partition of a key. Returns the number in that partition. Publishers of
-- other partitions do not wait.
-- locks: those of "_Publish". writes: the same.
overload qgres."Publish"(
    queue_name text, partition_key text, bytea bytea, jsonb jsonb, text text, out sequence_number bigint) returns bigint
as qgres."_Publish"(qgres.queue__get_id(qgres.queue__partition($1, $2)), row($3, $4, $5)::qgres.queue_entry);
