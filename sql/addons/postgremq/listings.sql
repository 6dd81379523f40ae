-- Counts the messages of a queue by status, or of all queues. Always returns one row.
create or replace function postgremq.get_queue_statistics(p_queue varchar default null)
returns table (
    pending_count bigint, processing_count bigint, completed_count bigint, total_count bigint)
language plpgsql stable security definer set search_path = postgremq, pg_catalog, pg_temp
as $$
begin
    return query
    select count(*) filter (where m.status = 'pending'),
           count(*) filter (where m.status = 'processing'),
           count(*) filter (where m.status = 'completed'),
           count(*)
    from postgremq.queue_messages m
    where p_queue is null or m.queue_name = p_queue;
end;
$$;

-- Lists the messages of a queue by time of publication.
create or replace function postgremq.list_messages(p_queue_name varchar)
returns table (
    message_id integer, status varchar, published_at timestamptz, delivery_attempts integer,
    vt timestamptz, processed_at timestamptz)
language plpgsql stable security definer set search_path = postgremq, pg_catalog, pg_temp
as $$
begin
    return query
    select m.message_id, m.status, m.published_at, m.delivery_attempts, m.vt, m.processed_at
    from postgremq.queue_messages m
    where m.queue_name = p_queue_name
    order by m.published_at, m.message_id;
end;
$$;

-- Returns a message, or no row.
create or replace function postgremq.get_message(p_message_id integer)
returns table (
    message_id integer, topic_name varchar, payload jsonb, published_at timestamptz)
language plpgsql stable security definer set search_path = postgremq, pg_catalog, pg_temp
as $$
begin
    return query
    select m.id, m.topic_name, m.payload, m.published_at
    from postgremq.messages m
    where m.id = p_message_id;
end;
$$;

-- When the next message of a queue becomes visible, or became visible; null if none is to come, also
-- while an exclusive queue is not alive. Of those behind the floor, it looks at the first hundred.
create or replace function postgremq.get_next_visible_time(p_queue_name varchar)
returns timestamptz
language plpgsql security definer set search_path = postgremq, pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_floor  postgremq.floor%rowtype;
    v_next   timestamptz;
begin
    select f.* into v_floor
    from postgremq.queue_base b
    cross join lateral postgremq.find_floor(b.queue_id) f
    where b.name = p_queue_name and (not b.exclusive or b.keep_alive_until > now());
    select min(o.vt) into v_next
    from (
        (select s.vt from postgremq.open_state s
         where s.queue_id = v_floor.queue_id and s.due_at is not null
           and (s.due_at, s.message_id) > (v_floor.due_at, v_floor.due_id)
           and s.due_at < 9223372036854775807
         order by s.due_at, s.message_id limit 100)
        union all
        select r.vt from postgremq.listed_rows(v_floor) r
    ) o;
    return v_next;
end;
$$;
