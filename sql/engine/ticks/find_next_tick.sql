-- Returns the tick that ends the next batch after i_last, or null. This is the nearest tick that is
-- older than the lag and meets the minimum count or the minimum interval. With a maximum count, it
-- is the farthest tick that stays within that count, and the minimum interval is met once it has
-- passed, because a quiet queue has no later tick until its idle period is over.
-- Counts are differences of event ids, so they are upper estimates if transactions rolled back. Events
-- that the last tick left behind have ids that it counts: a minimum of one is met by the first tick that
-- leaves none behind. Redelivered events get no new ids, so for an owner the events themselves are
-- counted before several ticks become one batch; if there are too many, it is an earlier tick.
create or replace function pgque.find_next_tick(
    i_queue_id integer, i_last pgque.tick,
    i_min_lag interval, i_min_count integer, i_min_interval interval, i_max_count integer,
    i_owner_id integer default null)
returns pgque.tick
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_is_over constant boolean := i_max_count is not null
                                  and clock_timestamp() >= i_last.tick_time + i_min_interval;
    v_newest  timestamptz := timestamptz 'infinity';
    v_near    pgque.tick;
    v_far     pgque.tick;
begin
    if i_min_lag is not null then
        v_newest := clock_timestamp() - i_min_lag;
    end if;

    select t.* into v_near
    from pgque.tick_log t
    where t.tick_queue = i_queue_id
      and t.tick_id > i_last.tick_id
      and t.tick_time <= v_newest
      and (i_min_count is null and i_min_interval is null
           or t.tick_event_seq >= i_last.tick_event_seq + i_min_count
           or i_min_count = 1 and i_last.left_some and not t.left_some
           or t.tick_time >= i_last.tick_time + i_min_interval or v_is_over)
    order by t.tick_id
    limit 1;
    if not found or i_max_count is null then
        return v_near;
    end if;

    select t.* into v_far
    from pgque.tick_log t
    where t.tick_queue = i_queue_id
      and t.tick_event_seq <= i_last.tick_event_seq + i_max_count
      and t.tick_id > v_near.tick_id
      and t.tick_time <= v_newest
    order by t.tick_event_seq desc, t.tick_id desc
    limit 1;
    if not found then
        return v_near;
    end if;
    while i_owner_id is not null and v_far.tick_id > v_near.tick_id
          and pgque.count_between(i_last, v_far, i_owner_id, i_max_count) > i_max_count loop
        select t.* into v_far  -- goes back half the distance to the nearest one
        from pgque.tick t
        where t.tick_queue = i_queue_id and t.tick_id <= (v_near.tick_id + v_far.tick_id) / 2
        order by t.tick_id desc
        limit 1;
    end loop;
    return v_far;
end;
$$;

-- Counts the events that a consumer gets between two ticks of a queue, up to one more than i_limit; 0 if
-- the first is not the earlier one.
create or replace function pgque.count_between(
    i_from pgque.tick, i_to pgque.tick, i_owner_id integer, i_limit integer default null)
returns bigint
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_range   record := pgque.events_between(i_from.tick_queue, i_from.tick_snapshot,
                                             i_to.tick_snapshot);
    v_events  bigint;
begin
    if v_range.tables = '{}' then
        return 0;
    end if;
    execute format(  -- quoted: made by events_between
        'select count(*) from (%s limit %s) e',
        (select string_agg(format('select from %s where %s and (ev_owner is null or ev_owner = %s)',
                                  t, c, i_owner_id), ' union all ')
         from unnest(v_range.tables) t
         cross join unnest(array[v_range.in_range, v_range.in_list]) c
         where c is not null),
        coalesce(i_limit::bigint + 1, 9223372036854775807))
    into v_events;
    return v_events;
end;
$$;
