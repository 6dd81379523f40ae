-- Maintenance by a scheduler, step by step. Each step has its own transaction, so that the two steps
-- of a rotation are in different transactions, no lock outlasts its step, and a failed step does not
-- stop the others.

-- Returns how long maint_loop waits between two rounds: less while a log is on its second half, where
-- reading costs more.
create or replace function pgque.maint_pause()
returns interval
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp set lock_timeout = '5s'
as $$
begin
    return case when exists (select from pgque.log l where l.half = 1) then interval '1 second'
                else interval '10 seconds' end;
exception when lock_not_available then
    perform pgque.refuse_locked('the slot', 'The next slot tries again: let them end.');
    return null;
end;
$$;

-- Runs maintenance for one slot of a scheduler, every 10 seconds (see maint_pause), in READ COMMITTED
-- even if the session's default differs. A step that fails does not end the slot; the slot raises the last
-- error at its end.
-- locks: none between steps. writes: what the steps write.
create or replace procedure pgque.maint_loop(i_slot interval)
language plpgsql as $$
declare
    v_slot       constant record := pgque.begin_slot(i_slot);
    v_due        pg_catalog.timestamptz := v_slot.starts;
    v_operation  record;
    v_again      pg_catalog.bool;
    v_state      pg_catalog.text;
    v_message    pg_catalog.text;
    v_hint       pg_catalog.text;
begin
    commit;
    set transaction isolation level read committed;
    loop
        for v_operation in select o.func_name, o.func_arg from pgque.maint_operations() o loop
            loop
                begin
                    v_again := pgque.run_maintenance(v_operation.func_name,
                                                         v_operation.func_arg) operator(pg_catalog.>) 0;
                exception
                    when others then
                        v_again := false;
                        get stacked diagnostics v_state = returned_sqlstate,
                            v_message = message_text, v_hint = pg_exception_hint;
                        v_message := pg_catalog.concat(v_operation.func_name, ': ', v_message);
                end;
                commit and chain;
                exit when not v_again;
            end loop;
        end loop;
        commit and chain;
        v_due := pgque.next_beat(v_due, pgque.maint_pause(), v_slot.ends, v_slot.job_id);
        exit when v_due is null;
        perform pg_catalog.pg_sleep_until(v_due);
    end loop;
    if v_state is not null then
        raise exception using
            errcode = v_state, message = v_message, hint = pgque.next_run_hint(v_hint);
    end if;
end;
$$;
