-- Triggers under PgQ's names. A trigger function cannot call another one, so the engine's are copied.
-- They name PgQ's role, and count the event for queue_per_tx_limit.
-- locks: none beyond the insert's own. writes: the queue's current event table.
copy to pgq from pgque: jsontriga(), logutriga(), sqltriga()
replace (role pgque_writer: grant pgque_writer) with (role pgq_writer: grant pgq_writer)
replace (    end if;
    if c.skip) with (        perform pgq.check_tx_limit(c.queue);
    end if;
    if c.skip)
;

drop function if exists pgq.refuse_role(text, text, text);  -- of version 0.3
