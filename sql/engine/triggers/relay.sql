-- Capture from the WAL (docs/replicas.md). A relay inserts the changes that a publication contains, each
-- with the id of the transaction that made it, so that for readers it is as if that transaction had sent
-- it. Only relays tick such a queue, after they have inserted all that the tick's snapshot sees.

-- Returns why the WAL does not have all changes of a table; null if it has them.
create or replace function pgque.relay_gap(i_table regclass, i_queue text)
returns text
language sql stable set search_path = pgque, pg_catalog, pg_temp
as $$
    select coalesce(min(case
        when c.relpersistence <> 'p' then format('needs alter table %s set logged', r)
        when c.relkind = 'r' and exists (select from pg_inherits i where i.inhparent = r)
            then 'has tables that inherit from it'
        when c.relreplident not in ('d', 'f') then format('needs alter table %s replica identity default', r)
        when pgque.key_of_table(i_table) is null and c.relreplident <> 'f'
            then format('has no key, and needs alter table %s replica identity full', r)
        when pgque.key_of_table(i_table) is not null and not exists (
                 select from pg_index i where i.indrelid = r and i.indisprimary and i.indimmediate)
            then 'needs a primary key that is not deferrable, to be captured from the WAL'
        when current_setting('server_version_num')::integer < 180000
             and exists (select from pg_attribute a where a.attrelid = r and a.attgenerated = 's')
            then 'has generated columns, which the WAL has from PostgreSQL 18 on' end),
        pgque.capture_gap(i_table, i_queue))
    from pgque.capture_relations(i_table) r join pg_class c on c.oid = r;
$$;

-- The state of the relays of one queue or of all: the position in the WAL, how much WAL the slot holds and
-- how much it may still hold (null: no limit), and why changes are missing; null if none are.
create or replace function pgque.relays(
    i_queue text default null,
    out queue_name text, out publication text, out slot text, out lsn pg_lsn, out held_bytes bigint,
    out left_bytes bigint, out wal_status text, out problem text)
returns setof record
language sql stable security definer set search_path = pgque, pg_catalog, pg_temp
as $$
    select q.queue_name, format('pgque_%s', q.queue_id), r.slot, coalesce(r.lsn, s.confirmed_flush_lsn),
           (case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end
            - s.restart_lsn)::bigint, s.safe_wal_size, s.wal_status, case
               when p.oid is null then 'its publication is gone'
               else 'replication slot ' || r.slot || case
                   when s.slot_name is null then ' is gone'
                   when s.wal_status = 'lost' then ' is lost: '
                       || coalesce(to_jsonb(s) ->> 'invalidation_reason', 'it held too much of the WAL')
                   when s.plugin <> 'pgoutput' or s.database <> current_database()
                        -- What a relay has confirmed is not yet in an older snapshot.
                        or s.confirmed_flush_lsn > r.lsn and not s.active
                       then ' is ahead of the queue: somebody else used or made it, or it is of a server '
                            'that failed' end end
    from pgque.relay r
    join pgque.queue q on q.queue_id = r.queue_id
    left join pg_publication p on p.pubname = format('pgque_%s', q.queue_id)
    left join pg_replication_slots s on s.slot_name = r.slot
    where i_queue is null or q.queue_name = i_queue;
$$;

-- The tables that are captured from the WAL into a queue, or into all, and what is wrong with each.
create or replace function pgque.relayed_tables(
    i_queue text default null,
    out queue_name text, out relation regclass, out facts jsonb, out problem text)
returns setof record
language sql stable set search_path = pgque, pg_catalog, pg_temp
as $$
    -- Changes are missing while a partition is unlogged.
    select r.queue_name, l.prrelid::regclass,
           jsonb_build_object('publication', concat_ws(' ', l.oid, p.xmin, l.xmin)) || coalesce((
               select jsonb_object_agg(part::oid, pg_relation_filenode(part))
               from pgque.capture_relations(l.prrelid) part where part <> l.prrelid), '{}'),
           coalesce(r.problem, case
        when not (p.pubinsert and p.pubupdate and p.pubdelete and p.pubtruncate) or p.pubviaroot
             or to_jsonb(p) ->> 'pubgencols' <> 's' or to_jsonb(l) ->> 'prqual' is not null
             or to_jsonb(l) ->> 'prattrs' is not null
        then format('publication %s leaves changes out', p.pubname) end, 'it ' || pgque.relay_gap(l.prrelid, r.queue_name))
    from pgque.relays(i_queue) r
    join pg_publication p on p.pubname = r.publication
    join pg_publication_rel l on l.prpubid = p.oid;
$$;

-- Adds a table to the publication of a relay, or removes it. Its lock waits for the table's writers, so all
-- changes of a transaction are published or none.
-- locks: the table (SHARE ROW EXCLUSIVE), for at most a second of waiting. writes: the publication.
create or replace function pgque.publish_table(i_table regclass, i_queue text, i_publish boolean)
returns integer
language plpgsql set search_path = pgque, pg_catalog, pg_temp set lock_timeout = '1s' as $$
declare
    v_is     constant boolean := exists (select from pgque.relayed_tables(i_queue) t
                                         where t.relation = i_table);
    v_relay  record;
begin
    perform pgque.current_event_table(i_queue);
    select r.publication, coalesce(r.problem, 'it ' || pgque.relay_gap(i_table, i_queue)) as why into v_relay
    from pgque.relays(i_queue) r
    where i_table is not null and i_publish is not null;
    if not found then
        raise exception 'queue "%" has no relay, or no table was named', i_queue
            using errcode = 'PQ005', hint = 'Call pgque.capture or pgque.uncapture.';
    elsif i_publish and v_relay.why is not null then
        raise exception 'table % cannot be captured from the WAL: %', i_table, v_relay.why
            using errcode = 'PQ005', hint = 'docs/replicas.md lists what can be captured.';
    elsif v_is <> i_publish then
        execute format('lock table %s in share row exclusive mode', i_table);  -- quoted: regclass
        execute format('alter publication %I %s table %s', v_relay.publication,  -- quoted: regclass
                       case when i_publish then 'add' else 'drop' end, i_table);
    end if;
    return (i_publish or v_is)::integer;
end;
$$;

-- Starts the capture of a queue's tables from the WAL, once the given publication and slot exist.
-- Without a row in tick_state, no ticker ticks the queue. With i_end, it ends the capture.
-- locks: none. writes: relay, tick_state, the catalog.
create or replace function pgque.set_relay(
    i_queue text, i_end boolean, out publication text, out slot text)
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_queue pgque.queue := pgque.find_queue(i_queue);
begin
    if i_end then
        delete from pgque.relay r where r.queue_id = v_queue.queue_id;
        insert into pgque.tick_state values (v_queue.queue_id) on conflict do nothing;
        return;
    end if;
    insert into pgque.relay as r
    select v_queue.queue_id, format('pgque_%s_%s', d.oid, v_queue.queue_id)
    from pg_database d where d.datname = current_database()
    on conflict do nothing;
    delete from pgque.tick_state t where t.queue_id = v_queue.queue_id;
    for v_nr in 0..v_queue.queue_ntables - 1 loop
        execute format('grant insert on %s_%s to pgque_admin', v_queue.queue_data_pfx, v_nr);  -- quoted: numbers
    end loop;
    select r.publication, r.slot into publication, slot from pgque.relays(i_queue) r;
end;
$$;

-- Returns what a relay needs in a transaction whose snapshot may become a tick's. All transactions that the
-- snapshot sees are before wal.
create or replace function pgque.relay_state(
    i_queue text,
    out publication text, out slot text, out problem text, out lsn bigint, out wal bigint,
    out flushed bigint, out next_id bigint, out snapshot text, out is_due boolean, out event_table text)
returns setof record
language plpgsql stable security definer set search_path = pgque, pg_catalog, pg_temp as $$
begin
    perform pgque.find_queue(i_queue);
    return query
    select r.publication, r.slot, r.problem, (r.lsn - '0/0')::bigint,
           (pg_current_wal_insert_lsn() - '0/0')::bigint, (pg_current_wal_flush_lsn() - '0/0')::bigint,
           pg_snapshot_xmax(s)::text::bigint, s::text,
           exists (select from pgque.tick_due d where d.queue_name = i_queue),
           pgque.current_event_table(i_queue)
    from pgque.relays(i_queue) r, pg_current_snapshot() s;
end;
$$;

-- Records that a relay has inserted the changes before a position in the WAL. If a tick is due or i_tick is
-- true, it makes one with the snapshot of this transaction; none if i_tick is null. Returns the tick. If it
-- has new events, it is marked as leaving some behind, because their senders may not have ended.
-- locks: the row of relay. writes: relay, tick, tick_request; notifies.
create or replace function pgque.relay_to(i_queue text, i_lsn pg_lsn, i_tick boolean)
returns bigint
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_queue  pgque.queue := pgque.find_queue(i_queue);
    v_tick   bigint;
begin
    if i_lsn is null then
        perform pgque.refuse_value('the position of queue "%s" is null', i_queue, 'Pass a position.');
    end if;
    update pgque.relay set lsn = i_lsn where queue_id = v_queue.queue_id;
    if i_tick is null then
        return null;
    elsif i_tick then
        perform pgque.force_next_tick(i_queue);
    end if;
    perform pgque.check_tick_half();
    perform pgque.check_adopted(), pgque.follow_timeline() where not pgque.is_timeline_followed();
    insert into pgque.tick_log (
        tick_queue, tick_id, tick_time, tick_snapshot, tick_event_seq, half, left_some)
    select d.queue_id, d.last_tick_id + 1, clock_timestamp(), pgque.tick_snapshot(), d.last_event_id,
           (select l.half from pgque.log l where l.log_name = 'tick'), d.has_new
    from pgque.tick_due d
    where d.queue_id = v_queue.queue_id
    returning tick_id into v_tick;
    if found then
        delete from pgque.tick_request r where r.queue_id = v_queue.queue_id;
        perform pg_notify('pgque_' || i_queue, v_tick::text);
    end if;
    return v_tick;
end;
$$;
