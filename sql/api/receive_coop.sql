-- receive for a worker that shares a consumer with others: returns messages of the worker's open or
-- next batch.
-- locks: those of open_coop_batch and finish_batch. writes: the same.
create or replace function pgque.receive_coop(
    i_queue text, i_consumer text, i_subconsumer text,
    i_max_return integer default 100, i_dead_interval interval default null)
returns setof pgque.message
language plpgsql security definer
as $$
declare
    v_batch bigint;
begin
    if i_max_return is null then
        return;
    elsif i_max_return < 1 then
        perform pgque.refuse_value('no batch returns %s messages', i_max_return::text,
                                   'Ask for 1 or more.');
    end if;
    loop
        v_batch := pgque.next_batch(i_queue, i_consumer, i_subconsumer, i_dead_interval);
        exit when v_batch is null;
        return query select * from pgque.read_messages(v_batch, i_max_return);
        exit when found;
        perform pgque.finish_batch(v_batch);
    end loop;
end;
$$;

-- register_subconsumer under the name that applications expect.
forward pgque.subscribe_subconsumer(
    i_queue text, i_consumer text, i_subconsumer text, i_convert_normal boolean default false)
as pgque.register_subconsumer(i_queue, i_consumer, i_subconsumer, i_convert_normal);

-- unregister_subconsumer under the name that applications expect.
forward pgque.unsubscribe_subconsumer(
    i_queue text, i_consumer text, i_subconsumer text, i_batch_handling integer default 0)
as pgque.unregister_subconsumer(i_queue, i_consumer, i_subconsumer, i_batch_handling);
