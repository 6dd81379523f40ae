-- Queues that an older installation made get this version's functions.
do $$
begin
    perform pgque.build_queue_functions(q.queue_id) from pgque.queue q;
end;
$$;
