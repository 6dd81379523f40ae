-- Ticks under PgQ's names.

-- Ticks every queue that is due; returns how many.
-- locks: those of pgque.ticker. writes: the same.
forward pgq.ticker() returns bigint
as pgque.ticker();

-- Ticks one queue if it is due; returns the tick's id, or null.
-- locks: those of pgque.ticker. writes: the same.
forward pgq.ticker(i_queue_name text) returns bigint
as pgque.ticker(i_queue_name);

-- Inserts a tick that comes from elsewhere.
-- locks: those of pgque.ticker. writes: the same.
forward pgq.ticker(
    i_queue_name text, i_tick_id bigint, i_orig_timestamp timestamptz, i_event_seq bigint) returns bigint
as pgque.ticker(i_queue_name, i_tick_id, i_orig_timestamp, i_event_seq);

-- Makes the next ticker run tick this queue; returns the last tick's id.
-- locks: none. writes: tick_request.
forward pgq.force_tick(i_queue_name text) returns bigint
as pgque.force_tick(i_queue_name);

-- The tick that would end a batch after the given tick; nulls when there is none.
forward pgq.find_tick_helper(
    i_queue_id integer, i_prev_tick_id bigint, i_prev_tick_time timestamptz,
    i_prev_tick_seq bigint, i_min_count bigint, i_min_interval interval,
    out next_tick_id bigint, out next_tick_time timestamptz, out next_tick_seq bigint) returns record
as pgque.find_tick_helper(
        i_queue_id, i_prev_tick_id, i_prev_tick_time, i_prev_tick_seq, i_min_count, i_min_interval);
