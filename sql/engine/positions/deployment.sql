-- Makes sure that a consumer belongs to a deployment: the first one that asks gets it, and any other is
-- refused. So a second Dagster with the same assets does not take batches away. The claims themselves
-- do not check this, because consumers need not belong to Dagster. Returns 1 if the consumer belonged
-- to none before, else 0.
-- locks: waits for a concurrent call for the same consumer; those of find_deployed. writes:
-- consumer_deployment.
create or replace function pgque.enter_deployment(
    i_queue text, i_consumer text, i_deployment text)
returns integer security definer
as $$
declare
    v_sub_ids  integer[] := pgque.find_deployed(i_queue, i_consumer, i_deployment);
    v_is_new   boolean;
    v_owner    pgque.consumer_deployment;
begin
    insert into pgque.consumer_deployment (sub_id, deployment)
    select id, i_deployment from unnest(v_sub_ids) id order by id
    on conflict do nothing;
    v_is_new := found;
    select d.* into v_owner
    from pgque.consumer_deployment d
    where d.sub_id = any (v_sub_ids) and d.deployment <> i_deployment
    limit 1;
    if found then
        raise exception 'consumer "%" on queue "%" belongs to deployment "%", since %, and this is '
                        'deployment "%"', i_consumer, i_queue, v_owner.deployment,
                        date_trunc('seconds', v_owner.since), i_deployment
            using errcode = 'PQ024',
                  hint = format('Let it consume there; or move it here, with its position, by: '
                                'select pgque.move_to_deployment(%L, %L, %L); or `pgque assign`.',
                                i_queue, i_consumer, i_deployment);
    end if;
    return v_is_new::integer;
end;
$$;

-- Moves a consumer to another deployment. A batch that a run of the earlier one has stays leased
-- until that run ends. Returns the earlier deployment, or null.
-- locks: the consumer's row in consumer_deployment; those of find_deployed. writes:
-- consumer_deployment.
create or replace function pgque.move_to_deployment(
    i_queue text, i_consumer text, i_deployment text)
returns text security definer
as $$
declare
    v_sub_ids  integer[] := pgque.find_deployed(i_queue, i_consumer, i_deployment);
    v_earlier  text;
begin
    insert into pgque.consumer_deployment as d (sub_id, deployment)
    select id, i_deployment from unnest(v_sub_ids) id order by id
    on conflict (sub_id) do update set deployment = d.deployment;  -- locks it
    select min(d.deployment) into v_earlier
    from pgque.consumer_deployment d
    where d.sub_id = any (v_sub_ids) and d.deployment <> i_deployment;
    update pgque.consumer_deployment d
    set deployment = i_deployment, since = clock_timestamp()
    where d.sub_id = any (v_sub_ids) and d.deployment <> i_deployment;
    return v_earlier;
end;
$$;

-- Returns the subscriptions that a deployment asks for: of a partitioned consumer, those of all its
-- slots. Refuses a deployment without a name, and a single subconsumer or slot.
-- locks: the consumer's row in partition_consumer, shared, so that the slots stay until the caller has
-- written. writes: nothing.
create or replace function pgque.find_deployed(
    i_queue text, i_consumer text, i_deployment text)
returns integer[]
as $$
declare
    v_queue  pgque.queue := pgque.find_queue(i_queue);
    v_slots  integer[];
    v_sub    pgque.subscription;
begin
    if coalesce(i_deployment, '') = '' then
        raise exception 'no deployment for consumer "%" on queue "%"', coalesce(i_consumer, ''),
                        i_queue
            using errcode = 'PQ005', hint = 'Pass the name of the deployment.';
    end if;
    perform from pgque.partition_consumer c
    where c.queue_id = v_queue.queue_id and c.co_name = i_consumer
    for share;
    select array_agg(b.sub_id) into v_slots
    from pgque.partition_slot_base b
    where b.queue_id = v_queue.queue_id and b.co_name = i_consumer;
    if v_slots is not null then
        return v_slots;
    end if;
    v_sub := pgque.find_subscription(i_queue, i_consumer);
    if v_sub.sub_role in ('coop_member', 'slot') then
        perform pgque.refuse_cooperative(v_sub, i_queue, i_consumer);
    end if;
    return array[v_sub.sub_id];
end;
$$;
