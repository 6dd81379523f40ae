-- Ends a batch: the consumer's position moves to its last tick. A batch under a live lease is
-- finished by its holder, with ack_batch.
-- locks: waits for a concurrent move of the same consumer. writes: position_log.
create or replace function pgque.finish_batch(x_batch_id bigint)
returns integer
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_sub pgque.subscription;
begin
    loop
        v_sub := pgque.find_batch(x_batch_id);
        if v_sub.lease_until > clock_timestamp() then
            raise exception using
                errcode = 'PQ004',
                message = format('batch %s is leased by "%s" until %s',
                                 x_batch_id, v_sub.lease_owner, v_sub.lease_until),
                hint = 'Its holder finishes it with ack_batch; others wait until the lease ends.';
        end if;
        exit when pgque.close_batch(v_sub);
    end loop;
    return 1;
end;
$$;

-- The step that finish_batch and ack_batch share. False when the position moved meanwhile.
-- locks: waits for a concurrent move of the same consumer. writes: position_log.
create or replace function pgque.close_batch(i_sub pgque.subscription)
returns boolean
language plpgsql
set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    i_sub.sub_last_tick := i_sub.sub_next_tick;
    i_sub.sub_batch := null;
    i_sub.sub_next_tick := null;
    return pgque.append_position(i_sub);
end;
$$;
