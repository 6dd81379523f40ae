-- Triggers under PgQ's names. A trigger function cannot call another one, so the engine's are copied.
-- They name PgQ's role, and count the event for queue_per_tx_limit.
-- locks: none beyond the insert's own. writes: the queue's current event table.
copy to pgq from pgque: jsontriga()
replace (role pgque_writer: grant pgque_writer) with (role pgq_writer: grant pgq_writer)
replace (    if c.is_last) with (    if c.is_sent then
        perform pgq.check_tx_limit(tg_argv[0]);
    end if;
    if c.is_last)
;

copy to pgq from pgque: jsontriga() as logutriga
replace (role pgque_writer: grant pgque_writer) with (role pgq_writer: grant pgq_writer)
replace (    if c.is_last) with (    if c.is_sent then
        perform pgq.check_tx_limit(tg_argv[0]);
    end if;
    if c.is_last)
replace ('json') with ('url')
;

copy to pgq from pgque: jsontriga() as sqltriga
replace (role pgque_writer: grant pgque_writer) with (role pgq_writer: grant pgq_writer)
replace (    if c.is_last) with (    if c.is_sent then
        perform pgq.check_tx_limit(tg_argv[0]);
    end if;
    if c.is_last)
replace ('json') with ('sql')
;

drop function if exists pgq.refuse_role(text, text, text);  -- of version 0.3
