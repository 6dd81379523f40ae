-- Holds an open batch: all attempts at it failed, and later batches wait until an operator looks into
-- it. consumer_states() and queue_health() show it with the reason until the batch is claimed
-- again or finished. i_epoch is the epoch at which the attempts were counted; a batch that was claimed
-- since then is refused. Returns 1, or 0 if the batch was held under this epoch before.
-- With i_is_retried, it is not held: its attempts fail with temporary errors, and are repeated
-- forever. The reason is shown until the batch is finished.
-- locks: waits for a concurrent call for the same consumer. writes: held_batch.
create or replace function pgque.hold_batch(i_batch_id bigint, i_epoch bigint, i_reason text,
                                            i_is_retried boolean default false)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_sub pgque.subscription := pgque.find_batch(i_batch_id);
begin
    if coalesce(i_reason, '') = '' then
        perform pgque.refuse_value('no reason is given to hold batch %s', i_batch_id::text,
                                   'Say what failed and what to do, for the person on call.');
    end if;
    perform pgque.refuse_slot(v_sub, true);
    if not i_is_retried and (v_sub.lease_epoch is distinct from i_epoch
                             or v_sub.lease_until > clock_timestamp()) then
        raise exception using
            errcode = 'PQ012',
            message = format('batch %s is not held: %s', i_batch_id,
                             case when v_sub.lease_until > clock_timestamp()
                                  then format('"%s" works on it until %s', v_sub.lease_owner,
                                              v_sub.lease_until)
                                  else format('it is under epoch %s, not %s', v_sub.lease_epoch,
                                              coalesce(i_epoch::text, 'null')) end),
            hint = 'It was claimed since its attempts were counted: count them again.';
    end if;

    insert into pgque.held_batch as h (sub_id, batch_id, epoch, reason, is_retried)
    values (v_sub.sub_id, i_batch_id, i_epoch, i_reason, i_is_retried)
    on conflict (sub_id) do update
    set batch_id = excluded.batch_id, epoch = excluded.epoch,
        held_since = case when h.batch_id = i_batch_id and h.is_retried and i_is_retried
                          then h.held_since else excluded.held_since end,
        reason = excluded.reason, is_retried = excluded.is_retried
    where (h.batch_id, h.epoch, h.is_retried)
          <> (excluded.batch_id, excluded.epoch, excluded.is_retried);
    return found::integer;
end;
$$;
