-- A queue's newest dead letters.
-- locks: none. writes: nothing.
create or replace function pgque.dlq_inspect(i_queue_name text, i_limit_count integer default 100)
returns setof pgque.dead_letter
language plpgsql stable security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_queue pgque.queue := pgque.find_queue(i_queue_name);
begin
    if i_limit_count is null or i_limit_count < 0 then
        raise exception using
            errcode = 'PQ005',
            message = format('no list of %s dead letters', coalesce(i_limit_count::text, 'null')),
            hint = 'Ask for 0 or more.';
    end if;
    return query
    select d.*
    from pgque.dead_letter d
    where d.dl_queue_id = v_queue.queue_id
    order by d.dl_time desc, d.dl_id desc
    limit i_limit_count;
end;
$$;

-- How many dead letters a queue has, by consumer and reason, with the oldest of each.
-- locks: none. writes: nothing.
create or replace function pgque.dlq_summary(
    i_queue_name text,
    out consumer_name text, out reason text, out dead_letters bigint, out oldest timestamptz)
returns setof record
language plpgsql stable security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_queue pgque.queue := pgque.find_queue(i_queue_name);
begin
    return query
    select c.co_name, d.dl_reason, count(*), min(d.dl_time)
    from pgque.dead_letter d
    join pgque.consumer c on c.co_id = d.dl_consumer_id
    where d.dl_queue_id = v_queue.queue_id
    group by c.co_name, d.dl_reason
    order by count(*) desc, c.co_name, d.dl_reason;
end;
$$;

-- Sends a dead letter again, to the consumer that gave it up and to no other, with its retries
-- counted anew. Returns the new event's id.
-- locks: the dead letter. writes: dead_letter, the queue's current event table.
create or replace function pgque.dlq_replay(i_dead_letter_id bigint)
returns bigint
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_dl     pgque.dead_letter;
    v_queue  text;
    v_owner  integer;
begin
    delete from pgque.dead_letter d
    where d.dl_id = i_dead_letter_id
    returning d.* into v_dl;
    if not found then
        raise exception using
            errcode = 'PQ010',
            message = format('dead letter %s does not exist',
                             coalesce(i_dead_letter_id::text, 'null')),
            hint = 'It was replayed or purged; see pgque.dlq_inspect(queue).';
    end if;

    select q.queue_name, s.sub_id into v_queue, v_owner
    from pgque.queue q
    left join pgque.subscription_base s
           on s.sub_queue = q.queue_id and s.sub_consumer = v_dl.dl_consumer_id
    where q.queue_id = v_dl.dl_queue_id;
    if v_owner is null then
        raise exception using
            errcode = 'PQ002',
            message = format('dead letter %s has no consumer to go to on queue "%s"',
                             i_dead_letter_id, v_queue),
            hint = 'Register its consumer again, or send its payload as a new event.';
    end if;
    return pgque.insert_event_raw(v_queue, null, v_dl.ev_time, v_owner, null, v_dl.ev_type,
                                  v_dl.ev_data, v_dl.ev_extra1, v_dl.ev_extra2, v_dl.ev_extra3,
                                  v_dl.ev_extra4);
end;
$$;

-- Replays all dead letters of a queue. One that cannot be replayed stays, and the others go on.
-- locks: the dead letters. writes: dead_letter, the queue's current event table.
create or replace function pgque.dlq_replay_all(
    i_queue_name text, out replayed bigint, out failed bigint, out first_error text)
returns record
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_queue  pgque.queue := pgque.find_queue(i_queue_name);
    v_id     bigint;
begin
    replayed := 0;
    failed := 0;
    for v_id in
        select d.dl_id from pgque.dead_letter d
        where d.dl_queue_id = v_queue.queue_id
        order by d.dl_id
    loop
        begin
            perform pgque.dlq_replay(v_id);
            replayed := replayed + 1;
        exception
            when others then
                failed := failed + 1;
                first_error := coalesce(first_error, sqlerrm);
        end;
    end loop;
end;
$$;

-- Deletes a queue's dead letters that are older than an age. Returns how many.
-- locks: the dead letters. writes: dead_letter.
create or replace function pgque.dlq_purge(
    i_queue_name text, i_older_than interval default '30 days')
returns integer
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_queue   pgque.queue := pgque.find_queue(i_queue_name);
    v_purged  integer;
begin
    if i_older_than is null or i_older_than < '0' then
        raise exception using
            errcode = 'PQ005',
            message = format('no purge of dead letters older than %s',
                             coalesce(i_older_than::text, 'null')),
            hint = 'Give an interval of 0 or more; 0 purges all.';
    end if;
    delete from pgque.dead_letter d
    where d.dl_queue_id = v_queue.queue_id
      and d.dl_time <= clock_timestamp() - i_older_than;
    get diagnostics v_purged = row_count;
    return v_purged;
end;
$$;
