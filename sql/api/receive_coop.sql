-- receive for a worker that shares a consumer with others: returns the messages of the worker's open or
-- next batch.
copy to pgque from pgque: receive(text, text, integer) as receive_coop
replace (i_queue text, i_consumer text, i_max_return integer default 100) with (i_queue text, i_consumer text, i_subconsumer text, i_max_return integer default 100,
    i_dead_interval interval default null)
replace (next_batch(i_queue, i_consumer)) with (next_batch(i_queue, i_consumer, i_subconsumer, i_dead_interval))
replace (pgque.receive:) with (pgque.receive_coop:)
;

-- register_subconsumer under the name that applications expect.
forward pgque.subscribe_subconsumer(
    i_queue text, i_consumer text, i_subconsumer text, i_convert_normal boolean default false)
as pgque.register_subconsumer(i_queue, i_consumer, i_subconsumer, i_convert_normal);

-- unregister_subconsumer under the name that applications expect.
forward pgque.unsubscribe_subconsumer(
    i_queue text, i_consumer text, i_subconsumer text, i_batch_handling integer default 0)
as pgque.unregister_subconsumer(i_queue, i_consumer, i_subconsumer, i_batch_handling);
