-- Finds the ticks around the events of a time window, which begins at i_start and ends before i_end. An
-- event is in the window of the tick with which it became visible. So each event is in exactly one of
-- several adjoining windows: the window of its commit, or the next one if no tick came in between. The
-- window begins after prev_tick_id and goes up to tick_id; they are equal if it has no tick. attempt is
-- higher than for any earlier call, so that sinks recognize the newest attempt. Refuses a window if not
-- all of its ticks exist: because it is not over, because they are no longer retained, or because the
-- queue is younger.
-- locks: none. writes: nothing, but the transaction gets an id.
create or replace function pgque.window_ticks(
    i_queue text, i_start timestamptz, i_end timestamptz,
    out prev_tick_id bigint, out tick_id bigint,
    out seq_start bigint, out seq_end bigint, out lag interval, out attempt bigint)
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_queue   constant pgque.queue := pgque.find_queue(i_queue);
    v_oldest  constant pgque.tick := pgque.find_oldest_tick(v_queue);
    v_newest  constant pgque.tick := pgque.find_newest_tick(v_queue.queue_id);
    v_prev    pgque.tick;
    v_last    pgque.tick;
begin
    perform pgque.check_adopted();
    if i_start is null or i_end is null or not i_start < i_end then
        raise exception '% to % is not a time window', coalesce(i_start::text, 'null'),
                        coalesce(i_end::text, 'null')
            using errcode = 'PQ005', hint = 'Pass two times, the earlier one first.';
    end if;
    if v_oldest.tick_id = 1 and v_oldest.tick_time >= i_end then
        raise exception 'the window from % to % is older than queue "%", which was created %',
                        i_start, i_end, i_queue, v_oldest.tick_time
            using errcode = 'PQ005',
                  hint = 'Begin with a window that overlaps the time since then.';
    elsif v_oldest.tick_id > 1 and v_oldest.tick_time >= i_start then
        raise exception 'the window from % to % of queue "%" is %: the oldest tick is %, of %',
                        i_start, i_end, i_queue,
                        case when v_oldest.tick_time >= i_end then 'gone' else 'partly gone' end,
                        v_oldest.tick_id, v_oldest.tick_time
            using errcode = 'PQ005',
                  hint = 'Its events cannot be read again. To retain events longer in the future, set '
                         'the queue''s parameter retention.';
    end if;
    if not exists (select from pgque.tick t
                   where t.tick_queue = v_queue.queue_id and t.tick_time >= i_end) then
        raise exception 'the window from % to % of queue "%" is not over: its last tick is %, of %',
                        i_start, i_end, i_queue, v_newest.tick_id, v_newest.tick_time
            using errcode = 'PQ005',
                  hint = format('Try again when the queue has a tick after the window. Without '
                                'events it gets one every %s (ticker_idle_period), if a ticker '
                                'runs and the queue is not paused.',
                                v_queue.queue_ticker_idle_period);
    end if;
    v_prev := pgque.find_tick(v_queue.queue_id, pgque.find_tick_before(v_queue, i_start));
    v_last := pgque.find_tick(v_queue.queue_id, pgque.find_tick_before(v_queue, i_end));
    prev_tick_id := v_prev.tick_id;
    tick_id := v_last.tick_id;
    seq_start := v_prev.tick_event_seq;
    seq_end := v_last.tick_event_seq;
    lag := clock_timestamp() - v_last.tick_time;
    attempt := pg_current_xact_id()::text::bigint;
end;
$$;
