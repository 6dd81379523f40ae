-- Publishes one event at a given time, or at once if that time is past. Returns the event's id if it was
-- sent; otherwise the id of the scheduled entry, for cancel_scheduled. Ids of entries are 2^52 or higher,
-- ids of events are lower.
-- locks: the queue's row, against its end. writes: delayed_events, or the current event table.
create or replace function pgque.send_at(
    i_queue text, i_type text, i_payload text, i_deliver_at timestamptz)
returns bigint
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_queue  pgque.queue := pgque.find_queue(i_queue);
    v_id     bigint;
begin
    if i_deliver_at is null or i_deliver_at = 'infinity' then
        perform pgque.refuse_value('an event cannot be delivered at %s', i_deliver_at::text,
                                   'Give a time; one that is past sends the event at once.');
    end if;
    if i_deliver_at <= clock_timestamp() then
        return pgque.send(i_queue, i_type, i_payload);
    end if;
    if v_queue.queue_disable_insert then
        perform pgque.refuse_insert(v_queue.queue_name);
    end if;

    insert into pgque.delayed_events (de_queue_name, de_deliver_at, de_type, de_data)
    values (i_queue, i_deliver_at, i_type, i_payload)
    returning de_id into v_id;
    return v_id;
end;
$$;

-- The jsonb form.
create or replace function pgque.send_at(i_queue text, i_type text, i_payload jsonb, i_deliver_at
    timestamptz)
returns bigint
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return pgque.send_at(i_queue, i_type, i_payload::text, i_deliver_at);
end;
$$;

-- Cancels an entry of send_at. Returns false if there is no such entry, because it was sent or
-- cancelled. Waits for a delivery that is sending it.
-- locks: the entry. writes: delayed_events.
create or replace function pgque.cancel_scheduled(i_entry_id bigint)
returns boolean
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
begin
    if i_entry_id is null then
        perform pgque.refuse_value('the id of the scheduled entry is null', null,
                                   'Pass what send_at returned; see pgque.list_scheduled(queue).');
    end if;
    delete from pgque.delayed_events d where d.de_id = i_entry_id;
    return found;
end;
$$;

-- Returns a queue's scheduled entries, the earliest first.
create or replace function pgque.list_scheduled(i_queue text, i_limit integer default 100)
returns setof pgque.delayed_events
language plpgsql stable security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_queue pgque.queue := pgque.find_queue(i_queue);
begin
    if i_limit is null or i_limit < 0 then
        perform pgque.refuse_value('a list cannot have %s scheduled entries', i_limit::text,
                                   'Ask for 0 or more.');
    end if;
    return query
    select d.*
    from pgque.delayed_events d
    where d.de_queue_name = v_queue.queue_name
    order by d.de_deliver_at, d.de_id
    limit i_limit;
end;
$$;

-- Sends the due entries in the order of their times, at most the 100,000 oldest of each queue. Returns
-- their number. Entries of a queue closed by disable_insert wait until it is opened; if a queue's entries
-- cannot be sent, a warning says why. Sequential scans are disabled, because the plan may have been cached
-- when there were few entries.
-- locks: the entries; those that another session holds are left to it. writes: delayed_events, current
-- event tables.
create or replace function pgque.maint_deliver_delayed()
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp set enable_seqscan = off
set lock_timeout = '1s'
as $$
declare
    v_now    constant timestamptz := clock_timestamp();
    v_queue  pgque.queue;
    v_sent   integer;
    v_total  integer := 0;
begin
    for v_queue in
        select q.*
        from pgque.queue q
        cross join lateral (
            select from pgque.delayed_events d
            where d.de_queue_name = q.queue_name and d.de_deliver_at <= v_now
            limit 1
        ) due
        where not q.queue_disable_insert
        order by q.queue_id
    loop
        begin
            with due as (
                delete from pgque.delayed_events d
                where d.ctid = any (array(
                    select e.ctid
                    from pgque.delayed_events e
                    where e.de_queue_name = v_queue.queue_name and e.de_deliver_at <= v_now
                    order by e.de_deliver_at, e.de_id
                    limit 100000
                    for update skip locked))
                returning d.*
            )
            insert into pgque.event (
                ev_table, ev_id, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4)
            select v_queue.queue_id * 4 + v_queue.queue_cur_table, nextval(v_queue.queue_seq),
                   d.de_type, d.de_data, d.de_extra1, d.de_extra2, d.de_extra3, d.de_extra4
            from (select * from due order by de_deliver_at, de_id) d;
            get diagnostics v_sent = row_count;
            v_total := v_total + v_sent;
        exception
            when others then
                raise warning 'what is scheduled for queue "%" waits: %', v_queue.queue_name, sqlerrm;
        end;
    end loop;
    return v_total;
end;
$$;
