-- Makes sure that a consumer belongs to a deployment: the first one that asks gets it, and any
-- other is refused. So a second Dagster with the same assets, such as a branch deployment or a
-- laptop, does not take batches away. The claims themselves do not check this, because consumers
-- need not belong to Dagster. Returns 1 if the consumer belonged to none before, else 0.
-- locks: waits for a concurrent call for the same consumer. writes: consumer_deployment.
create or replace function pgque.enter_deployment(
    i_queue text, i_consumer text, i_deployment text)
returns integer
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_sub_id  integer := pgque.check_deployment(i_queue, i_consumer, i_deployment);
    v_owner   pgque.consumer_deployment;
begin
    insert into pgque.consumer_deployment (sub_id, deployment)
    values (v_sub_id, i_deployment)
    on conflict do nothing;
    if found then
        return 1;
    end if;
    select d.* into v_owner from pgque.consumer_deployment d where d.sub_id = v_sub_id;
    if v_owner.deployment is distinct from i_deployment then
        raise exception using
            errcode = 'PQ024',
            message = format('consumer "%s" on queue "%s" belongs to deployment "%s", since %s, '
                             'and this is deployment "%s"', i_consumer, i_queue, v_owner.deployment,
                             date_trunc('seconds', v_owner.since), i_deployment),
            hint = format('Let it consume there; or move it here, with its position, by: '
                          'select pgque.move_to_deployment(%L, %L, %L); or `pgque assign`.',
                          i_queue, i_consumer, i_deployment);
    end if;
    return 0;
end;
$$;

-- Moves a consumer to another deployment. A batch that a run of the earlier one holds stays leased
-- until that run ends. Returns the earlier deployment, or null.
-- locks: the consumer's row in consumer_deployment. writes: consumer_deployment.
create or replace function pgque.move_to_deployment(
    i_queue text, i_consumer text, i_deployment text)
returns text
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_sub_id   integer := pgque.check_deployment(i_queue, i_consumer, i_deployment);
    v_earlier  text;
begin
    insert into pgque.consumer_deployment (sub_id, deployment)
    values (v_sub_id, i_deployment)
    on conflict do nothing;
    select d.deployment into v_earlier
    from pgque.consumer_deployment d
    where d.sub_id = v_sub_id
    for update;
    update pgque.consumer_deployment d
    set deployment = i_deployment, since = clock_timestamp()
    where d.sub_id = v_sub_id and d.deployment <> i_deployment;
    return case when found then v_earlier end;
end;
$$;

-- Returns the subscription that a deployment asks for. Refuses a deployment without a name, and a
-- subconsumer, which belongs where its consumer does.
-- locks: none. writes: nothing.
create or replace function pgque.check_deployment(
    i_queue text, i_consumer text, i_deployment text)
returns integer
language plpgsql
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_sub pgque.subscription := pgque.find_subscription(i_queue, i_consumer);
begin
    if coalesce(i_deployment, '') = '' then
        raise exception using
            errcode = 'PQ005',
            message = format('no deployment for consumer "%s" on queue "%s"', i_consumer, i_queue),
            hint = 'Pass the name of the deployment.';
    end if;
    if v_sub.sub_role in ('coop_member', 'slot') then
        perform pgque.refuse_cooperative(v_sub, i_queue, i_consumer);
    end if;
    return v_sub.sub_id;
end;
$$;
