-- How the replicas of tables stand: what the last batch stored, and what the last comparison found.

-- Records a batch in the transaction of its ack. i_tables has an object for each table that the consumer
-- replicates: table_name, location, is_stored (whether the batch changed the replica), is_copied and
-- row_count (after a copy), and added (by how many rows it grew; null if nobody knows, as of row_count).
-- Tables that are not among them are replicated no longer. A table that the batch left as it was is not
-- written.
-- locks: none. writes: replica_status, and what name_replicas() does.
create or replace function pgque.note_replicas(
    i_queue text, i_consumer text, i_tick bigint, i_tables jsonb)
returns void
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_sub pgque.subscription := pgque.find_subscription(i_queue, i_consumer);
begin
    if i_tick is null or jsonb_typeof(i_tables) is distinct from 'array' then
        perform pgque.refuse_value('a batch of replicas has a tick and an array of tables', null,
                                   'Pass the tick that ends the batch.');
    end if;
    perform pgque.name_replicas(i_queue, i_consumer, array(
        select t ->> 'table_name' from jsonb_array_elements(i_tables) t));
    update pgque.replica_status r
    set location = t.location
    from jsonb_to_recordset(i_tables) t (table_name text, location text)
    where r.sub_id = v_sub.sub_id and r.table_name = t.table_name and r.location is null
      and t.location is not null;
    update pgque.replica_status r
    set location = coalesce(t.location, r.location),
        row_count = case when t.is_copied then t.row_count
                         when r.counted_tick is null then r.row_count + coalesce(t.added, 0)
                         else r.row_count end,
        counted_tick = case when t.is_copied then null
                            when t.added is null then coalesce(r.counted_tick, r.stored_tick)
                            else r.counted_tick end,
        stored_tick = i_tick, stored_at = clock_timestamp(),
        copied_tick = case when t.is_copied then i_tick else r.copied_tick end,
        copied_at = case when t.is_copied then clock_timestamp() else r.copied_at end,
        batches = r.batches + 1
    from jsonb_to_recordset(i_tables) t (
        table_name text, location text, is_stored boolean, is_copied boolean, row_count bigint,
        added bigint)
    where r.sub_id = v_sub.sub_id and r.table_name = t.table_name and t.is_stored;
end;
$$;

-- Notes which tables a consumer replicates, before its first batch says it. Of others nothing is known any
-- more: one that comes back is copied.
-- locks: none. writes: replica_status, replica_table, replica_apart.
create or replace function pgque.name_replicas(i_queue text, i_consumer text, i_tables text[])
returns void
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_sub pgque.subscription := pgque.find_subscription(i_queue, i_consumer);
begin
    if i_tables is null then
        perform pgque.refuse_value('no tables are named', null, 'Pass an array of their names.');
    end if;
    delete from pgque.replica_table r
    where r.sub_id = v_sub.sub_id and r.table_name <> all (i_tables);
    delete from pgque.replica_apart r
    where r.sub_id = v_sub.sub_id and r.table_name <> all (i_tables);
    delete from pgque.replica_status r
    where r.sub_id = v_sub.sub_id and r.table_name <> all (i_tables);
    insert into pgque.replica_status (sub_id, table_name)
    select v_sub.sub_id, t from unnest(i_tables) t
    on conflict (sub_id, table_name) do nothing;
end;
$$;

-- The consumers of a queue that replicate a table.
create or replace function pgque.replicated_by(i_queue text, i_table text)
returns text[]
language sql stable security definer set search_path = pgque, pg_catalog, pg_temp
as $$
    select array_agg(c.co_name order by c.co_name)
    from pgque.replica_status r
    join pgque.subscription_base s using (sub_id)
    join pgque.queue q on q.queue_id = s.sub_queue
    join pgque.consumer c on c.co_id = s.sub_consumer
    where q.queue_name = i_queue and r.table_name = i_table;
$$;

-- Records what comparing a replica with its table found: the tick and the rows of the table, and how the
-- two differ, null if they are equal; or why they were not compared, which leaves what the last
-- comparison found. So does a comparison of an earlier tick. i_copy is the copied_tick at its beginning.
-- locks: none. writes: replica_status.
create or replace function pgque.note_verified(
    i_queue text, i_consumer text, i_table text, i_copy bigint, i_tick bigint, i_rows bigint,
    i_problem text, i_why_not text)
returns void
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_sub pgque.subscription := pgque.find_subscription(i_queue, i_consumer);
begin
    if i_table is null or i_why_not is null and i_tick is null
       or least(i_copy, i_tick, i_rows) < 0 then
        perform pgque.refuse_value('a comparison has a table and a tick', null,
                                   'Pass why_not if nothing was compared.');
    end if;
    insert into pgque.replica_status (sub_id, table_name)
    values (v_sub.sub_id, i_table)
    on conflict (sub_id, table_name) do nothing;
    update pgque.replica_status r
    set tried_at = clock_timestamp(), tried_copy = i_copy, unverified = i_why_not
    where r.sub_id = v_sub.sub_id and r.table_name = i_table;
    update pgque.replica_status r
    set row_count = case when r.counted_tick is null then coalesce(r.row_count, i_rows)
                         else coalesce(i_rows, r.row_count) end,
        counted_tick = case when i_rows is not null and (r.row_count is null or r.counted_tick is not null)
                                then i_tick else r.counted_tick end,
        batches = 0, verified_tick = i_tick, verified_at = clock_timestamp(),
        verified_problem = i_problem
    where r.sub_id = v_sub.sub_id and r.table_name = i_table and i_why_not is null
      and coalesce(r.verified_tick, 0) <= i_tick;
end;
$$;

-- The replicas of all consumers, also those that were copied before there was a record of them.
-- is_copied says whether the last copy counts.
create or replace view pgque.replica_state as
select q.queue_name, c.co_name as consumer_name, table_name, r.location, r.row_count, r.counted_tick,
       r.stored_tick, r.stored_at, r.copied_tick, r.copied_at, coalesce(r.batches, 0) as batches,
       r.verified_tick, r.verified_at, r.verified_problem, r.tried_at, r.tried_copy, r.unverified,
       a.reason as failure, a.apart_since as failed_at, a.attempts, a.retry_at,
       coalesce(t.incarnation = pgque.incarnation()::text, false) as is_copied
from pgque.replica_status r
full join pgque.replica_table t using (sub_id, table_name)
full join pgque.replica_apart a using (sub_id, table_name)
join pgque.subscription_base s using (sub_id)
join pgque.queue q on q.queue_id = s.sub_queue
join pgque.consumer c on c.co_id = s.sub_consumer;

-- Returns how the replicas of the consumers of a queue stand, or of all queues.
create or replace function pgque.replicas(i_queue text default null)
returns setof pgque.replica_state
language sql stable security definer set search_path = pgque, pg_catalog, pg_temp
as $$
    select * from pgque.replica_state s
    where s.queue_name = i_queue or i_queue is null
    order by s.queue_name, s.consumer_name, s.table_name;
$$;

-- A replica that differs is critical until a later comparison finds it equal, whatever is copied or
-- applied meanwhile.
create or replace view pgque.replica_health (queue_name, check_name, status, detail) as
select r.queue_name, format('replica:%s/%s', r.consumer_name, r.table_name),
       case when coalesce(r.failure, r.verified_problem) is not null then 'critical'
            when coalesce(r.unverified, case when r.verified_tick is null then '' end) is not null
                then 'warning'
            else 'ok' end,
       concat_ws('; ',
           format('stands apart since %s, while the other tables of "%s" go on; attempt %s failed, the '
                  'next is due at %s: ', date_trunc('seconds', r.failed_at), r.consumer_name, r.attempts,
                  date_trunc('seconds', r.retry_at)) || r.failure,
           case when r.verified_tick is null then 'was never compared with its table'
                else format('%s at tick %s, %s ago', coalesce(
                         'differed from its table: ' || r.verified_problem, 'was equal to its table'),
                         r.verified_tick,
                         date_trunc('seconds', clock_timestamp() - r.verified_at)) end,
           'the last attempt compared nothing: ' || r.unverified,
           case when r.verified_problem is not null
                then 'let the replica''s repair job write the rows that differ; this stays until a '
                     'later comparison finds none' end)
from pgque.replica_state r;

-- The age of a replica that was never compared is that of its copy.
create or replace view pgque.replica_metric as
select m.metric_name, 'gauge' as metric_type, m.value::numeric,
       jsonb_build_object('queue', r.queue_name, 'consumer', r.consumer_name, 'table', r.table_name)
       as labels
from pgque.replica_state r
cross join lateral (values
    ('pgque.replica.verified_tick', r.verified_tick),
    ('pgque.replica.verified_age_seconds',
     extract(epoch from clock_timestamp() - coalesce(r.verified_at, r.copied_at))),
    ('pgque.replica.problem', (coalesce(r.failure, r.verified_problem) is not null)::int)
) m (metric_name, value)
where m.value is not null;
