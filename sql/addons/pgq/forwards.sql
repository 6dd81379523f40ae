-- The functions of PgQ that are the same in pgque: the assembler writes them out, with the arguments
-- and the result of the engine's.

forward pgq to pgque for pgq_reader:
    batch_event_sql(bigint)
    batch_event_tables(bigint)
    batch_retry(bigint, integer)
    event_retry(bigint, bigint, integer)
    event_retry(bigint, bigint, timestamptz)
    find_tick_helper(integer, bigint, timestamptz, bigint, bigint, interval)
    finish_batch(bigint)
    force_tick(text)
    get_batch_info(bigint)
    next_batch_custom(text, text, interval, integer, interval)
    next_batch_info(text, text)
    register_consumer(text, text)
    register_consumer_at(text, text, bigint);

forward pgq to pgque for pgq_writer:
    current_event_table(text);

forward pgq to pgque for pgq_admin:
    create_queue(text)
    drop_queue(text)
    drop_queue(text, boolean)
    event_retry_raw(text, text, timestamptz, bigint, timestamptz, integer, text, text, text, text, text, text)
    grant_perms(text)
    maint_retry_events()
    maint_rotate_tables_step1(text)
    maint_rotate_tables_step2()
    seq_setval(text, bigint)
    set_queue_config(text, text, text)
    ticker()
    ticker(text)
    ticker(text, bigint, timestamptz, bigint)
    tune_storage(text);
