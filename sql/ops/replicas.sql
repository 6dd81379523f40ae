-- The state of table replicas: what the last batch stored, and what the last comparison found.

-- Records a batch in the transaction of its ack. i_tables has an object for each table that the consumer
-- replicates: table_name, location, is_stored (whether the batch changed the replica), is_copied, row_count
-- (after a copy or a TRUNCATE), and added (by how many rows it grew; null if unknown, like row_count). Tables
-- that are not in it are no longer replicated. A table that the batch did not change is not written.
-- locks: none. writes: replica_status, and what name_replicas() does.
create or replace function pgque.note_replicas(
    i_queue text, i_consumer text, i_tick bigint, i_tables jsonb)
returns void
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_sub pgque.subscription := pgque.find_subscription(i_queue, i_consumer);
begin
    if i_tick is null or jsonb_typeof(i_tables) is distinct from 'array' then
        perform pgque.refuse_value('a batch of replicas needs a tick and an array of tables', null,
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
        row_count = case when t.is_copied or t.row_count is not null then t.row_count
                         when r.counted_tick is null then r.row_count + coalesce(t.added, 0)
                         else r.row_count end,
        counted_tick = case when t.is_copied or t.row_count is not null then null
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

-- Records which tables a consumer replicates, before its first batch does. It forgets everything about
-- other tables, except that it replicated those that are still captured: if one is added again, it is copied.
-- locks: none. writes: replica_status, replica_table, replica_apart.
create or replace function pgque.name_replicas(i_queue text, i_consumer text, i_tables text[])
returns void
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_sub       pgque.subscription := pgque.find_subscription(i_queue, i_consumer);
    v_captured  text[];
begin
    if i_tables is null then
        perform pgque.refuse_value('no tables are named', null, 'Pass an array of their names.');
    end if;
    delete from pgque.replica_table r
    where r.sub_id = v_sub.sub_id and r.table_name <> all (i_tables);
    delete from pgque.replica_apart r
    where r.sub_id = v_sub.sub_id and r.table_name <> all (i_tables);
    if exists (select from pgque.replica_status r
               where r.sub_id = v_sub.sub_id and (r.left_at is not null or r.table_name <> all (i_tables))) then
        v_captured := array(select c.table_name from pgque.captured_tables(i_queue) c);
        with gone as (
            delete from pgque.replica_status r
            where r.sub_id = v_sub.sub_id
              and case when r.table_name = any (i_tables) then r.left_at is not null
                       else r.left_at is null or r.table_name <> all (v_captured) end
            returning r.table_name)
        insert into pgque.replica_status (sub_id, table_name, left_at)
        select v_sub.sub_id, g.table_name, clock_timestamp() from gone g
        where g.table_name <> all (i_tables) and g.table_name = any (v_captured);
    end if;
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
    where q.queue_name = i_queue and r.table_name = i_table and r.left_at is null;
$$;

-- Records the result of comparing a replica with its table: the tick, the rows of the table, and the
-- difference, null if they are equal; or why they were not compared, which leaves the last comparison's
-- result. A comparison of an earlier tick also leaves it. i_copy is the greater of copied_tick and doubt_tick
-- at its beginning. If all rows are equal since then, they may no longer differ.
-- If one part of the table was compared, i_part has its number, of how many, and what to keep with it.
-- The parts that were compared since the same copy are kept. The table's result is the oldest part that
-- differs; if none does, and all parts were compared, the oldest part.
-- locks: none. writes: replica_status, replica_table.
create or replace function pgque.note_verified(
    i_queue text, i_consumer text, i_table text, i_copy bigint, i_tick bigint, i_rows bigint,
    i_problem text, i_why_not text, i_part jsonb default null)
returns void
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_sub      pgque.subscription := pgque.find_subscription(i_queue, i_consumer);
    v_parts    jsonb;
    v_tick     bigint := i_tick;
    v_at       timestamptz := clock_timestamp();
    v_rows     bigint := case when i_part is null then i_rows end;
    v_problem  text := i_problem;
begin
    if i_table is null or i_why_not is null and i_tick is null
       or least(i_copy, i_tick, i_rows) < 0
       or i_part is not null and (jsonb_typeof(i_part -> 'number') = 'number'
                                  and jsonb_typeof(i_part -> 'of') = 'number') is not true then
        perform pgque.refuse_value('a comparison needs a table and a tick', null,
                                   'Pass why_not if nothing was compared, and number and of with a part.');
    end if;
    insert into pgque.replica_status (sub_id, table_name)
    values (v_sub.sub_id, i_table)
    on conflict (sub_id, table_name) do nothing;
    update pgque.replica_status r
    set tried_at = v_at, tried_copy = i_copy, unverified = i_why_not,
        parts = case when i_why_not is not null then r.parts
                     when i_part is not null then (
                         select coalesce(jsonb_object_agg(p.key, p.value), '{}')
                         from jsonb_each(r.parts) p
                         where p.value @> jsonb_build_object('of', i_part -> 'of', 'copy', i_copy))
                     || jsonb_build_object(i_part ->> 'number', i_part || jsonb_build_object(
                            'copy', i_copy, 'tick', i_tick, 'at', v_at, 'rows', i_rows,
                            'problem', i_problem)) end
    where r.sub_id = v_sub.sub_id and r.table_name = i_table
    returning r.parts into v_parts;
    if i_part is not null and i_why_not is null then
        select case when p.problem is not null or count(*) over () = (i_part ->> 'of')::integer
                    then p.tick end, p.at, p.problem
        into v_tick, v_at, v_problem
        from jsonb_each(v_parts) e, jsonb_to_record(e.value) p (tick bigint, at timestamptz, problem text)
        order by p.problem is null, p.tick
        limit 1;
    end if;
    update pgque.replica_status r
    set row_count = case when r.counted_tick is null then coalesce(r.row_count, v_rows)
                         else coalesce(v_rows, r.row_count) end,
        counted_tick = case when v_rows is not null and (r.row_count is null or r.counted_tick is not null)
                                then v_tick else r.counted_tick end,
        batches = 0, verified_tick = v_tick, verified_at = v_at, verified_problem = v_problem
    where r.sub_id = v_sub.sub_id and r.table_name = i_table and i_why_not is null
      and coalesce(r.verified_tick, 0) <= v_tick;
    update pgque.replica_table r
    set doubt = null
    where r.sub_id = v_sub.sub_id and r.table_name = i_table and r.doubt_tick = i_copy
      and i_why_not is null and v_tick is not null and v_problem is null;
end;
$$;

-- The replicas of all consumers, including those that were copied before there was a record of them.
-- is_copied says whether the last copy counts.
create or replace view pgque.replica_state as
select q.queue_name, c.co_name as consumer_name, table_name, r.location, r.row_count, r.counted_tick,
       r.stored_tick, r.stored_at, r.copied_tick, r.copied_at, coalesce(r.batches, 0) as batches,
       r.verified_tick, r.verified_at, r.verified_problem, r.tried_at, r.tried_copy, r.unverified,
       nullif(a.reason, '') as failure, a.apart_since as failed_at, a.attempts, a.retry_at,
       coalesce(t.incarnation = pgque.incarnation()::text, false) as is_copied, a.copying, r.parts,
       r.left_at, t.doubt, t.doubt_tick, case when t.doubt is not null then t.doubted_at end as doubted_at
from pgque.replica_status r
full join pgque.replica_table t using (sub_id, table_name)
full join pgque.replica_apart a using (sub_id, table_name)
join pgque.subscription_base s using (sub_id)
join pgque.queue q on q.queue_id = s.sub_queue
join pgque.consumer c on c.co_id = s.sub_consumer;

-- Returns the state of the replicas of a queue's consumers, or of all queues.
create or replace function pgque.replicas(i_queue text default null)
returns setof pgque.replica_state
language sql stable security definer set search_path = pgque, pg_catalog, pg_temp
as $$
    select * from pgque.replica_state s
    where s.queue_name = i_queue or i_queue is null
    order by s.queue_name, s.consumer_name, s.table_name;
$$;

-- A replica that differs is critical until a later comparison finds it equal, even if batches or copies
-- are applied in between.
create or replace view pgque.replica_health (queue_name, check_name, status, detail) as
select r.queue_name, format('replica:%s/%s', r.consumer_name, r.table_name),
       case when coalesce(r.failure, r.verified_problem) is not null then 'critical'
            when coalesce(r.unverified, r.doubt, case when r.verified_tick is null then '' end) is not null
                then 'warning'
            else 'ok' end,
       concat_ws('; ',
           format('has been set apart since %s, while the other tables of "%s" continue; attempt %s failed, the '
                  'next is due at %s: ', date_trunc('seconds', r.failed_at), r.consumer_name, r.attempts,
                  date_trunc('seconds', r.retry_at)) || r.failure,
           format('is being copied since %s, and the queue keeps all later events until it is: ',
                  date_trunc('seconds', r.failed_at)) || r.copying,
           case when r.verified_problem = r.failure then null  -- from the commit that sets it apart
                when r.verified_tick is null then 'was never compared with its table'
                else format('%s at tick %s, %s ago', coalesce(
                         'differed from its table: ' || r.verified_problem, 'was equal to its table'),
                         r.verified_tick,
                         date_trunc('seconds', clock_timestamp() - r.verified_at)) end,
           format('since tick %s, it may differ from its table, until a comparison finds all rows equal: ',
                  r.doubt_tick) || r.doubt,
           case when r.failure is null then 'the last attempt compared nothing: ' || r.unverified end,
           case when r.verified_problem is not null
                then 'let the replica''s repair job write the rows that differ; this stays until a '
                     'later comparison finds none' end)
from pgque.replica_state r
where r.left_at is null;

-- For a replica that was never compared, the age of its copy counts.
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
where m.value is not null and r.left_at is null;
