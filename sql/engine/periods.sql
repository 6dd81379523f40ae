-- Sets how long the logs of positions and ticks keep rows that an old snapshot may still read; returns
-- that time. A transaction whose snapshot is older gets a serialization failure when it first reads a
-- log, and a dump lacks the rows.
-- locks: the rows of log_rotation. writes: log_rotation.
create or replace function pgque.set_snapshot_patience(p_patience interval)
returns interval
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
begin
    if p_patience is null or p_patience < '0' then
        perform pgque.refuse_value('the snapshot patience cannot be %s', p_patience::text,
                                   'Give an interval of 0 or more; the default is 1 hour.');
    end if;
    update pgque.log_rotation set patience = p_patience;
    return p_patience;
end;
$$;

-- Sets how often ticker_loop ticks, in milliseconds; returns it.
-- locks: the row of config. writes: config.
create or replace function pgque.set_tick_period_ms(p_period_ms integer)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
begin
    if p_period_ms is null or p_period_ms not between 1 and 1000 then
        perform pgque.refuse_value(
            'the tick period cannot be %s ms', p_period_ms::text,
            'Give 1 to 1000. To tick less often, raise ticker_max_lag of the queues.');
    end if;
    update pgque.config set tick_period_ms = p_period_ms;
    return p_period_ms;
end;
$$;
