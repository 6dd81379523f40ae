-- Removes the schema postgremq with all messages. Refused while messages are pending, processing or
-- dead letters, unless forced. Publishers and consumers wait meanwhile, so that no message is missed.
-- locks: everything in the schema. writes: drops it; pgque.addon, pgque.snapshot_wait.
create or replace function postgremq.uninstall(force boolean default false)
returns void
language plpgsql security definer set search_path = postgremq, pg_catalog, pg_temp
as $$
declare
    v_queues text;
begin
    if force is not true then
        perform pgque.check_read_committed('uninstall without force');
    end if;
    lock table postgremq.messages, postgremq.dead_letter_queue, postgremq.state
        in share row exclusive mode;
    select string_agg(distinct format('"%s"', m.queue_name), ', ') into v_queues
    from (select q.queue_name from postgremq.queue_messages q where q.status <> 'completed'
          union all
          select d.queue_name from postgremq.dead_letter_queue d) m;
    if v_queues is not null and not coalesce(force, false) then
        raise exception using
            errcode = 'PQ020',
            message = format('queues have messages that are not finished, or dead letters: %s',
                             v_queues),
            hint = 'Let consumers finish them, requeue or purge the dead letters, or call '
                'postgremq.uninstall(true) to lose them.';
    end if;
    if to_regclass('pgque.addon') is not null then
        delete from pgque.addon a where a.addon_name = 'postgremq';
    end if;
    delete from pgque.snapshot_wait w where w.wait_name = 'postgremq';
    drop schema postgremq cascade;
end;
$$;
