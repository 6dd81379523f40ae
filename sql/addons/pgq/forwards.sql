-- The functions of PgQ that are the same in pgque: the assembler writes them out, with the arguments
-- and the result of the engine's.

-- Does what pgque.batch_event_sql does.
create or replace function pgq.batch_event_sql(x_batch_id bigint)
returns text
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    return pgque.batch_event_sql(x_batch_id);
end;
$$;

-- Does what pgque.batch_event_tables does.
create or replace function pgq.batch_event_tables(x_batch_id bigint)
returns setof text
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    return query select * from pgque.batch_event_tables(x_batch_id);
end;
$$;

-- Does what pgque.batch_retry does.
create or replace function pgq.batch_retry(i_batch_id bigint, i_retry_seconds integer)
returns integer
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    return pgque.batch_retry(i_batch_id, i_retry_seconds);
end;
$$;

-- Does what pgque.event_retry does.
create or replace function pgq.event_retry(
    x_batch_id bigint, x_event_id bigint, x_retry_seconds integer)
returns integer
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    return pgque.event_retry(x_batch_id, x_event_id, x_retry_seconds);
end;
$$;

-- Does what pgque.event_retry does.
create or replace function pgq.event_retry(
    x_batch_id bigint, x_event_id bigint, x_retry_time timestamptz)
returns integer
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    return pgque.event_retry(x_batch_id, x_event_id, x_retry_time);
end;
$$;

-- Does what pgque.find_tick_helper does.
create or replace function pgq.find_tick_helper(
    i_queue_id integer, i_prev_tick_id bigint, i_prev_tick_time timestamptz, i_prev_tick_seq bigint,
    i_min_count bigint, i_min_interval interval,
    out next_tick_id bigint, out next_tick_time timestamptz, out next_tick_seq bigint)
returns record
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    select * into next_tick_id, next_tick_time, next_tick_seq
    from pgque.find_tick_helper(i_queue_id, i_prev_tick_id, i_prev_tick_time,
        i_prev_tick_seq, i_min_count, i_min_interval);
end;
$$;

-- Does what pgque.finish_batch does.
create or replace function pgq.finish_batch(x_batch_id bigint)
returns integer
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    return pgque.finish_batch(x_batch_id);
end;
$$;

-- Does what pgque.force_tick does.
create or replace function pgq.force_tick(i_queue_name text)
returns bigint
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    return pgque.force_tick(i_queue_name);
end;
$$;

-- Does what pgque.get_batch_info does.
create or replace function pgq.get_batch_info(
    x_batch_id bigint,
    out queue_name text, out consumer_name text,
    out batch_start timestamptz, out batch_end timestamptz,
    out prev_tick_id bigint, out tick_id bigint, out lag interval,
    out seq_start bigint, out seq_end bigint)
returns record
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    select * into queue_name, consumer_name, batch_start, batch_end, prev_tick_id, tick_id, lag,
        seq_start, seq_end
    from pgque.get_batch_info(x_batch_id);
end;
$$;

-- Does what pgque.next_batch_custom does.
create or replace function pgq.next_batch_custom(
    i_queue_name text, i_consumer_name text, i_min_lag interval, i_min_count integer,
    i_min_interval interval,
    out batch_id bigint, out cur_tick_id bigint, out prev_tick_id bigint,
    out cur_tick_time timestamptz, out prev_tick_time timestamptz,
    out cur_tick_event_seq bigint, out prev_tick_event_seq bigint)
returns record
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    select * into batch_id, cur_tick_id, prev_tick_id, cur_tick_time, prev_tick_time,
        cur_tick_event_seq, prev_tick_event_seq
    from pgque.next_batch_custom(i_queue_name, i_consumer_name, i_min_lag, i_min_count,
        i_min_interval);
end;
$$;

-- Does what pgque.next_batch_info does.
create or replace function pgq.next_batch_info(i_queue_name text, i_consumer_name text,
    out batch_id bigint, out cur_tick_id bigint, out prev_tick_id bigint,
    out cur_tick_time timestamptz, out prev_tick_time timestamptz,
    out cur_tick_event_seq bigint, out prev_tick_event_seq bigint)
returns record
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    select * into batch_id, cur_tick_id, prev_tick_id, cur_tick_time, prev_tick_time,
        cur_tick_event_seq, prev_tick_event_seq
    from pgque.next_batch_info(i_queue_name, i_consumer_name);
end;
$$;

-- Does what pgque.register_consumer does.
create or replace function pgq.register_consumer(x_queue_name text, x_consumer_id text)
returns integer
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    return pgque.register_consumer(x_queue_name, x_consumer_id);
end;
$$;

-- Does what pgque.register_consumer_at does.
create or replace function pgq.register_consumer_at(
    x_queue_name text, x_consumer_name text, x_tick_pos bigint)
returns integer
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    return pgque.register_consumer_at(x_queue_name, x_consumer_name, x_tick_pos);
end;
$$;

grant execute on function
    pgq.batch_event_sql(bigint),
    pgq.batch_event_tables(bigint),
    pgq.batch_retry(bigint, integer),
    pgq.event_retry(bigint, bigint, integer),
    pgq.event_retry(bigint, bigint, timestamptz),
    pgq.find_tick_helper(integer, bigint, timestamptz, bigint, bigint, interval),
    pgq.finish_batch(bigint),
    pgq.force_tick(text),
    pgq.get_batch_info(bigint),
    pgq.next_batch_custom(text, text, interval, integer, interval),
    pgq.next_batch_info(text, text),
    pgq.register_consumer(text, text),
    pgq.register_consumer_at(text, text, bigint)
to pgq_reader;

-- Does what pgque.current_event_table does.
create or replace function pgq.current_event_table(x_queue_name text)
returns text
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    return pgque.current_event_table(x_queue_name);
end;
$$;

grant execute on function
    pgq.current_event_table(text)
to pgq_writer;

-- Does what pgque.create_queue does.
create or replace function pgq.create_queue(i_queue_name text)
returns integer
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    return pgque.create_queue(i_queue_name);
end;
$$;

-- Does what pgque.drop_queue does.
create or replace function pgq.drop_queue(x_queue_name text)
returns integer
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    return pgque.drop_queue(x_queue_name);
end;
$$;

-- Does what pgque.drop_queue does.
create or replace function pgq.drop_queue(x_queue_name text, x_force boolean)
returns integer
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    return pgque.drop_queue(x_queue_name, x_force);
end;
$$;

-- Does what pgque.event_retry_raw does.
create or replace function pgq.event_retry_raw(
    x_queue text, x_consumer text, x_retry_after timestamptz,
    x_ev_id bigint, x_ev_time timestamptz, x_ev_retry integer, x_ev_type text, x_ev_data text,
    x_ev_extra1 text, x_ev_extra2 text, x_ev_extra3 text, x_ev_extra4 text)
returns bigint
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    return pgque.event_retry_raw(x_queue, x_consumer, x_retry_after, x_ev_id, x_ev_time,
        x_ev_retry, x_ev_type, x_ev_data, x_ev_extra1, x_ev_extra2, x_ev_extra3, x_ev_extra4);
end;
$$;

-- Does what pgque.grant_perms does.
create or replace function pgq.grant_perms(x_queue_name text)
returns integer
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    return pgque.grant_perms(x_queue_name);
end;
$$;

-- Does what pgque.maint_retry_events does.
create or replace function pgq.maint_retry_events()
returns integer
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    return pgque.maint_retry_events();
end;
$$;

-- Does what pgque.maint_rotate_tables_step1 does.
create or replace function pgq.maint_rotate_tables_step1(i_queue_name text)
returns integer
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    return pgque.maint_rotate_tables_step1(i_queue_name);
end;
$$;

-- Does what pgque.maint_rotate_tables_step2 does.
create or replace function pgq.maint_rotate_tables_step2()
returns integer
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    return pgque.maint_rotate_tables_step2();
end;
$$;

-- Does what pgque.seq_setval does.
create or replace function pgq.seq_setval(i_seq_name text, i_new_value bigint)
returns bigint
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    return pgque.seq_setval(i_seq_name, i_new_value);
end;
$$;

-- Does what pgque.set_queue_config does.
create or replace function pgq.set_queue_config(
    x_queue_name text, x_param_name text, x_param_value text)
returns integer
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    return pgque.set_queue_config(x_queue_name, x_param_name, x_param_value);
end;
$$;

-- Does what pgque.ticker does.
create or replace function pgq.ticker()
returns bigint
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    return pgque.ticker();
end;
$$;

-- Does what pgque.ticker does.
create or replace function pgq.ticker(i_queue_name text)
returns bigint
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    return pgque.ticker(i_queue_name);
end;
$$;

-- Does what pgque.ticker does.
create or replace function pgq.ticker(
    i_queue_name text, i_tick_id bigint, i_orig_timestamp timestamptz, i_event_seq bigint)
returns bigint
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    return pgque.ticker(i_queue_name, i_tick_id, i_orig_timestamp, i_event_seq);
end;
$$;

-- Does what pgque.tune_storage does.
create or replace function pgq.tune_storage(i_queue_name text)
returns integer
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    return pgque.tune_storage(i_queue_name);
end;
$$;

grant execute on function
    pgq.create_queue(text),
    pgq.drop_queue(text),
    pgq.drop_queue(text, boolean),
    pgq.event_retry_raw(text, text, timestamptz, bigint, timestamptz, integer, text, text, text, text, text, text),
    pgq.grant_perms(text),
    pgq.maint_retry_events(),
    pgq.maint_rotate_tables_step1(text),
    pgq.maint_rotate_tables_step2(),
    pgq.seq_setval(text, bigint),
    pgq.set_queue_config(text, text, text),
    pgq.ticker(),
    pgq.ticker(text),
    pgq.ticker(text, bigint, timestamptz, bigint),
    pgq.tune_storage(text)
to pgq_admin;
