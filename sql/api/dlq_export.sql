-- Returns a page of a queue's dead letters, the oldest first, each with the name of its consumer, for
-- an export. The next page begins after the last id of this page.
create or replace function pgque.dlq_export(
    i_queue_name text, i_after_id bigint default 0, i_limit_count integer default 1000)
returns table (
    dl_id bigint, consumer_name text, dl_time timestamptz, dl_reason text, ev_id bigint,
    ev_time timestamptz, ev_retry integer, ev_type text, ev_data text, ev_extra1 text,
    ev_extra2 text, ev_extra3 text, ev_extra4 text)
language plpgsql stable security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_queue pgque.queue := pgque.find_queue(i_queue_name);
begin
    if i_after_id is null or i_limit_count is null or i_limit_count < 1 then
        perform pgque.refuse_value(
            'a page cannot have %s dead letters', i_limit_count::text,
            'Start after 0, continue after the last dl_id, and ask for 1 or more.');
    end if;
    return query
    select d.dl_id, c.co_name, d.dl_time, d.dl_reason, d.ev_id, d.ev_time, d.ev_retry, d.ev_type,
           d.ev_data, d.ev_extra1, d.ev_extra2, d.ev_extra3, d.ev_extra4
    from pgque.dead_letter d
    join pgque.consumer c on c.co_id = d.dl_consumer_id
    where d.dl_queue_id = v_queue.queue_id
      and d.dl_id > i_after_id
    order by d.dl_id
    limit i_limit_count;
end;
$$;
