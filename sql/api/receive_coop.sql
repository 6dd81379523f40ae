-- receive for a worker that shares a consumer with others: returns the messages of the worker's open or
-- next batch.
create or replace function pgque.receive_coop(
    i_queue text, i_consumer text, i_subconsumer text, i_max_return integer default 100,
    i_dead_interval interval default null)
returns setof pgque.message
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_batch  pg_catalog.int8;
    v_rows   pg_catalog.int8;
begin
    if i_max_return is null then
        return;
    elsif i_max_return operator(pg_catalog.<) 1 then
        perform pgque.refuse_value('a call cannot return %s messages', i_max_return::pg_catalog.text,
                                   'Ask for 1 or more.');
    end if;
    loop
        v_batch := pgque.next_batch(i_queue, i_consumer, i_subconsumer, i_dead_interval);
        exit when v_batch is null;
        return query select * from pgque.read_messages(v_batch, i_max_return);
        get diagnostics v_rows = row_count;
        if v_rows operator(pg_catalog.>) i_max_return then
            raise exception 'pgque.receive_coop: batch exceeds max_return of %', i_max_return
                using errcode = 'program_limit_exceeded', hint = pg_catalog.format(
                    'Nothing was received, because an ack would finish the other messages unseen. '
                    'The batch has about %s: pass a higher i_max_return, up to 2147483647.', (
                        select b.seq_end operator(pg_catalog.-) b.seq_start
                        from pgque.get_batch_info(v_batch) b));
        end if;
        exit when v_rows operator(pg_catalog.>) 0;
        perform pgque.finish_batch(v_batch);
    end loop;
end;
$$;

-- register_subconsumer under the name that applications expect.
create or replace function pgque.subscribe_subconsumer(
    i_queue text, i_consumer text, i_subconsumer text, i_convert_normal boolean default false)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return pgque.register_subconsumer(i_queue, i_consumer, i_subconsumer, i_convert_normal);
end;
$$;

-- unregister_subconsumer under the name that applications expect.
create or replace function pgque.unsubscribe_subconsumer(
    i_queue text, i_consumer text, i_subconsumer text, i_batch_handling integer default 0)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return pgque.unregister_subconsumer(i_queue, i_consumer, i_subconsumer, i_batch_handling);
end;
$$;
