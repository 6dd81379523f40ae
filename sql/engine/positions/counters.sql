-- Records that a consumer moved from one tick to another without finishing the events between them
-- (counter_log); i_from_tick is null for a new consumer.
-- locks: none. writes: counter_log.
create or replace function pgque.count_move(
    i_queue_id integer, i_sub_id integer, i_from_tick bigint, i_to_tick bigint)
returns void
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_from  bigint := 0;
    v_to    pgque.tick := pgque.find_tick(i_queue_id, i_to_tick);
begin
    if i_from_tick is not null then
        v_from := (pgque.find_tick(i_queue_id, i_from_tick)).tick_event_seq;
    end if;
    insert into pgque.counter_log (queue_id, sub_id, acked)
    values (i_queue_id, i_sub_id, v_from - v_to.tick_event_seq);
end;
$$;

-- Records where a registration ends, so that the events it finished stay in its queue's sum. It also
-- appends a position, so that no worker finishes a batch at the same time. A subconsumer's batches
-- count for its main consumer.
-- locks: waits for a concurrent move of the consumer. writes: position_log, counter_log.
create or replace function pgque.count_end()
returns trigger
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_sub pgque.subscription;
begin
    loop
        select s.* into v_sub from pgque.subscription s where s.sub_id = old.sub_id;
        exit when not found or v_sub.sub_main is not null;
        v_sub.sub_batch := null;
        v_sub.sub_next_tick := null;
        continue when not pgque.append_position(v_sub);
        insert into pgque.counter_log (queue_id, sub_id, acked)
        select t.tick_queue, v_sub.sub_id, t.tick_event_seq
        from pgque.tick t
        where t.tick_queue = v_sub.sub_queue and t.tick_id = v_sub.sub_last_tick;
        exit;
    end loop;
    return old;
end;
$$;

create or replace trigger count_end before delete on pgque.subscription_base
for each row execute function pgque.count_end();

-- Counts the retries that a statement added, in one row per consumer. It is a trigger so that every way
-- of scheduling a retry is counted. A retry that was scheduled before is not counted again.
-- locks: none. writes: counter_log.
create or replace function pgque.count_retries()
returns trigger
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
begin
    insert into pgque.counter_log (queue_id, sub_id, nacked)
    select r.ev_queue, r.ev_owner, count(*)
    from added r
    group by r.ev_queue, r.ev_owner;
    return null;
end;
$$;

create or replace trigger count_retries after insert on pgque.retry_queue
referencing new table as added
for each statement execute function pgque.count_retries();

-- The same for dead letters, which name the consumer and not the subscription.
-- locks: none. writes: counter_log.
create or replace function pgque.count_dead_letters()
returns trigger
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
begin
    insert into pgque.counter_log (queue_id, sub_id, dead_lettered)
    select d.dl_queue_id, s.sub_id, count(*)
    from added d
    left join pgque.subscription_base s
           on s.sub_queue = d.dl_queue_id and s.sub_consumer = d.dl_consumer_id
    group by d.dl_queue_id, s.sub_id;
    return null;
end;
$$;

create or replace trigger count_dead_letters after insert on pgque.dead_letter
referencing new table as added
for each statement execute function pgque.count_dead_letters();
