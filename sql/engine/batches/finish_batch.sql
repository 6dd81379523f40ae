-- Finishes a batch: the consumer's position moves to the batch's last tick. A batch under a live lease
-- is finished by its owner, with ack_batch. The common case is one statement on half 0
-- (log_halves.sql), which takes the batch's newest row there for the position. If another row follows
-- that one, it writes nothing, and find_batch finds the position or raises the error.
-- locks: waits for a concurrent move of the same consumer. writes: position_log.
create or replace function pgque.finish_batch(x_batch_id bigint)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_committed  constant boolean := current_setting('transaction_isolation') = 'read committed';
    v_sub        pgque.subscription;
begin
    loop
        if v_committed then
            insert into pgque.position_log_0 (
                sub_id, pos_seq, sub_last_tick, sub_active, lease_epoch, next_half)
            select p.sub_id, p.pos_seq + 1, case when s.sub_main is null then p.sub_next_tick end,
                   clock_timestamp(), p.lease_epoch, 0
            from (select *
                  from pgque.position_log_0 l
                  where l.sub_batch = x_batch_id
                  order by l.pos_seq desc
                  limit 1) p
            join pgque.subscription_base s on s.sub_id = p.sub_id
            where p.next_half = 0
              and s.sub_role <> 'slot'
              and coalesce(p.lease_until <= clock_timestamp(), true)
            on conflict (sub_id, pos_seq) do nothing;
            exit when found;
        end if;
        v_sub := pgque.find_batch(x_batch_id);
        perform pgque.refuse_slot(v_sub, false);
        perform pgque.check_may_settle(v_sub, null, null);
        exit when pgque.close_batch(v_sub);
    end loop;
    return 1;
end;
$$;

-- Closes a batch, or a page of it. A subconsumer has no position afterwards: the cursor is its main
-- consumer's. False when the position moved meanwhile.
-- locks: waits for a concurrent move of the same consumer. writes: position_log.
create or replace function pgque.close_batch(i_sub pgque.subscription)
returns boolean
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
begin
    if i_sub.page_to < 9223372036854775807 then  -- a page that is not the last of its batch
        i_sub.page_from := i_sub.page_to;
    else
        i_sub.sub_last_tick := case when i_sub.sub_main is null then i_sub.sub_next_tick end;
        i_sub.sub_batch := null;
        i_sub.sub_next_tick := null;
        i_sub.page_from := null;
    end if;
    i_sub.page_to := null;
    return pgque.append_position(i_sub);
end;
$$;
