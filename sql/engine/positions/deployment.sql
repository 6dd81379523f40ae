-- Makes sure that a consumer belongs to one owner: the first caller gets it, and other owners are refused,
-- so that two owners never share the batches. The caller defines the owner: a deployment, a location in it,
-- and the names of the assets that are computed together. A null is not compared, and is recorded once it
-- is known. One common asset is enough, so that an owner may get further ones. The claims themselves do not
-- check this, because a consumer need not have an owner. Returns 1 if the consumer had no owner before,
-- otherwise 0.
-- locks: waits for a concurrent call for the same consumer; those of find_subscription_ids. writes:
-- consumer_deployment.
create or replace function pgque.enter_deployment(
    i_queue text, i_consumer text, i_deployment text, i_location text default null,
    i_assets text[] default null)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_sub_ids  integer[] := pgque.find_subscription_ids(
                   i_queue, i_consumer, coalesce(i_deployment, i_assets[1]));
    v_is_new   boolean;
    v_owner    pgque.consumer_deployment;
begin
    insert into pgque.consumer_deployment (sub_id, deployment, location, assets)
    select id, i_deployment, i_location, i_assets from unnest(v_sub_ids) id order by id
    on conflict do nothing;
    v_is_new := found;
    -- Before the check, so that of two concurrent callers the second waits for what the first recorded.
    update pgque.consumer_deployment d
    set deployment = coalesce(i_deployment, d.deployment),
        location = coalesce(i_location, d.location),
        assets = coalesce(i_assets, d.assets)
    where d.sub_id = any (v_sub_ids)
      and (d.deployment <> i_deployment or d.location <> i_location or not d.assets && i_assets)
          is not true
      and (d.deployment, d.location, d.assets) is distinct from (
          coalesce(i_deployment, d.deployment), coalesce(i_location, d.location),
          coalesce(i_assets, d.assets));
    select d.* into v_owner
    from pgque.consumer_deployment d
    where d.sub_id = any (v_sub_ids)
      and (d.deployment <> i_deployment or d.location <> i_location or not d.assets && i_assets)
    limit 1;
    if found then
        raise exception 'consumer "%" on queue "%" belongs to %, since %, and this is %', i_consumer,
                        i_queue,
                        pgque.asset_name(v_owner.deployment, v_owner.location, v_owner.assets),
                        date_trunc('seconds', v_owner.since),
                        pgque.asset_name(i_deployment, i_location, i_assets)
            using errcode = 'PQ024',
                  hint = format('Let it consume there, and give this asset another consumer; or move '
                                'the consumer here, with its position: select '
                                'pgque.move_to_deployment(%L, %L, %L, %L, %L); or `pgque assign`.',
                                i_queue, i_consumer, i_deployment, i_location, i_assets);
    end if;
    return v_is_new::integer;
end;
$$;

-- Moves a consumer to another owner. The next call of enter_deployment records what is null. A batch that
-- the earlier owner has stays leased until its worker ends. Returns the earlier deployment, or
-- null.
-- locks: the consumer's row in consumer_deployment; those of find_subscription_ids. writes:
-- consumer_deployment.
create or replace function pgque.move_to_deployment(
    i_queue text, i_consumer text, i_deployment text, i_location text default null,
    i_assets text[] default null)
returns text
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_sub_ids  integer[] := pgque.find_subscription_ids(
                   i_queue, i_consumer, coalesce(i_deployment, i_location, i_assets[1]));
    v_earlier  text;
begin
    insert into pgque.consumer_deployment as d (sub_id, deployment, location, assets)
    select id, i_deployment, i_location, i_assets from unnest(v_sub_ids) id order by id
    on conflict (sub_id) do update set deployment = d.deployment;  -- locks it
    select min(d.deployment) into v_earlier
    from pgque.consumer_deployment d
    where d.sub_id = any (v_sub_ids) and d.deployment <> i_deployment;
    update pgque.consumer_deployment d
    set deployment = i_deployment, location = i_location, assets = i_assets, since = clock_timestamp()
    where d.sub_id = any (v_sub_ids)
      and (d.deployment, d.location, d.assets) is distinct from (i_deployment, i_location, i_assets);
    return v_earlier;
end;
$$;

-- Records that a location is alive and which consumers its assets have, so that queue_health() detects
-- consumers whose asset is gone. A location calls it every two minutes.
-- locks: the location's row. writes: code_location.
create or replace function pgque.note_location(
    i_deployment text, i_location text, i_queues text[], i_consumers text[], i_assets text[])
returns void
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
begin
    if i_location is null or i_queues is null or array[cardinality(i_consumers), cardinality(i_assets)]
       is distinct from array[cardinality(i_queues), cardinality(i_queues)] then
        perform pgque.refuse_value('the location is empty, or the arrays differ in length', null,
                                   'Pass its name, and a consumer and an asset for each queue.');
    end if;
    insert into pgque.code_location
    values (coalesce(i_deployment, ''), i_location, clock_timestamp(), i_queues, i_consumers, i_assets)
    on conflict (deployment, location) do update
    set seen_at = excluded.seen_at, queues = excluded.queues, consumers = excluded.consumers,
        assets = excluded.assets;
end;
$$;

-- Returns the name of a consumer's owner for messages.
create or replace function pgque.asset_name(i_deployment text, i_location text, i_assets text[])
returns text
language plpgsql immutable set search_path = pgque, pg_catalog, pg_temp as $$
begin
    return concat_ws(', ', 'deployment "' || i_deployment || '"',
                     'location "' || i_location || '"',
                     'asset ' || array_to_string(i_assets, ', '));
end;
$$;

-- Returns the ids of a consumer's subscriptions, for an owner; for a partitioned consumer, the ids of all
-- its slots. Refuses an owner without a name, and a single subconsumer or slot.
-- locks: the consumer's row in partition_consumer, shared, so that the slots stay until the caller has
-- written. writes: nothing.
create or replace function pgque.find_subscription_ids(
    i_queue text, i_consumer text, i_owner text)
returns integer[]
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_queue  pgque.queue := pgque.find_queue(i_queue);
    v_slots  integer[];
    v_sub    pgque.subscription;
begin
    if coalesce(i_owner, '') = '' then
        raise exception 'no deployment is given for consumer "%" on queue "%"', coalesce(i_consumer, ''),
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
