-- What PgQ shows about queues and consumers. The figures that PgQ leaves null at first are 0,
-- because its own programs format them as numbers.

-- Each queue with its settings and its new events. ev_per_sec is 0 until there are two ticks.
create or replace function pgq.get_queue_info(
    i_queue_name text,
    out queue_name text, out queue_ntables integer, out queue_cur_table integer,
    out queue_rotation_period interval, out queue_switch_time timestamptz,
    out queue_external_ticker boolean, out queue_ticker_paused boolean,
    out queue_ticker_max_count integer, out queue_ticker_max_lag interval,
    out queue_ticker_idle_period interval, out ticker_lag interval,
    out ev_per_sec double precision, out ev_new bigint, out last_tick_id bigint)
returns setof record
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    return query
    select i.queue_name, i.queue_ntables, i.queue_cur_table, i.queue_rotation_period,
           i.queue_switch_time, i.queue_external_ticker, i.queue_ticker_paused,
           i.queue_ticker_max_count, i.queue_ticker_max_lag, i.queue_ticker_idle_period,
           i.ticker_lag, coalesce(i.ev_per_sec, 0), i.ev_new, i.last_tick_id
    from pgque.get_queue_info(i_queue_name) i;
end;
$$;

-- Each consumer with its lag, its open batch, and the number of events that wait. A subconsumer
-- without a batch has no position: its lag is null, and 0 events wait for it.
create or replace function pgq.get_consumer_info(
    i_queue_name text, i_consumer_name text,
    out queue_name text, out consumer_name text, out lag interval, out last_seen interval,
    out last_tick bigint, out current_batch bigint, out next_tick bigint, out pending_events bigint)
returns setof record
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    return query
    select i.queue_name, i.consumer_name, i.lag, i.last_seen, i.last_tick, i.current_batch,
           i.next_tick, coalesce(i.pending_events, 0)
    from pgque.get_consumer_info(i_queue_name, i_consumer_name) i;
end;
$$;

-- The forms with fewer arguments.
create or replace function pgq.get_queue_info(out queue_name text, out queue_ntables integer, out
    queue_cur_table integer,
    out queue_rotation_period interval, out queue_switch_time timestamptz,
    out queue_external_ticker boolean, out queue_ticker_paused boolean,
    out queue_ticker_max_count integer, out queue_ticker_max_lag interval,
    out queue_ticker_idle_period interval, out ticker_lag interval,
    out ev_per_sec double precision, out ev_new bigint, out last_tick_id bigint)
returns setof record
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    return query select * from pgq.get_queue_info(null);
end;
$$;

-- As pgque.get_consumer_info, with changes.
create or replace function pgq.get_consumer_info(i_queue_name text,
    out queue_name text, out consumer_name text, out lag interval, out last_seen interval,
    out last_tick bigint, out current_batch bigint, out next_tick bigint,
    out pending_events bigint)
returns setof record
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    return query select * from pgq.get_consumer_info(i_queue_name, null);
end;
$$;

-- As pgque.get_consumer_info, with changes.
create or replace function pgq.get_consumer_info(out queue_name text, out consumer_name text, out
    lag interval, out last_seen interval,
    out last_tick bigint, out current_batch bigint, out next_tick bigint,
    out pending_events bigint)
returns setof record
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    return query select * from pgq.get_consumer_info(null, null);
end;
$$;

-- Returns a name quoted for SQL; without a dot, the schema is public.
create or replace function pgq.quote_fqname(i_name text)
returns text
language plpgsql immutable security definer set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    return pgque.quote_fqname(i_name);
end;
$$;

-- Returns the last event id that a queue gave out, by the name in queue_event_seq, or its last
-- tick, by the name in queue_tick_seq, for which there is no sequence.
create or replace function pgq.seq_getval(i_seq_name text)
returns bigint
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
declare
    v_queue_id integer;
begin
    select q.queue_id into v_queue_id from pgq.queue q where q.queue_tick_seq = i_seq_name;
    if found then
        return (select max(t.tick_id) from pgque.tick t where t.tick_queue = v_queue_id);
    end if;
    return pgque.seq_getval(i_seq_name);
end;
$$;

-- The version of PgQ whose functions are here. Its programs read it.
create or replace function pgq.version()
returns text
language plpgsql immutable set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    return '3.5';
end;
$$;
