-- Opens a staging table, so that many connections can write events that one transaction publishes. Each
-- connection COPYs into the table that staging_table names, and reports its transaction and number of
-- events. publish_staging publishes the events of the given transactions, so events of repeated attempts
-- do not count. Only the role that opened it, its members and admins may publish or abort it. The table is
-- unlogged; publishing fails if a crash of the server lost events.
-- locks: none. writes: staging, the catalog.
create or replace function pgque.open_staging(i_queue text)
returns bigint
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_queue  pgque.queue := pgque.find_queue(i_queue);
    v_id     bigint;
begin
    if v_queue.queue_disable_insert then
        perform pgque.refuse_insert(v_queue.queue_name);
    end if;
    insert into pgque.staging (queue_id, used_at, opened_by)
    values (v_queue.queue_id, clock_timestamp(),
            coalesce(nullif(current_setting('role'), 'none'), session_user))
    returning staging_id into v_id;
    execute format(
        'create unlogged table pgque.%I ('
        'st_txid xid8 not null default pg_current_xact_id(), ev_type text, ev_data text, '
        'ev_extra1 text, ev_extra2 text, ev_extra3 text, ev_extra4 text) '
        'with (autovacuum_enabled = false, toast.autovacuum_enabled = false)',
        format('staging_%s', v_id));
    execute format(
        'grant insert (ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4) '
        'on pgque.%I to pgque_writer', format('staging_%s', v_id));
    return v_id;
end;
$$;

-- Returns the table to COPY into, with columns as in current_event_table. Each call shows that the
-- write is in progress: maintenance aborts a staging a day after the last call.
-- locks: the entry. writes: staging.
create or replace function pgque.staging_table(i_staging_id bigint)
returns text
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
begin
    update pgque.staging s set used_at = clock_timestamp()
    where s.staging_id = i_staging_id and s.published is null
      and s.used_at > '-infinity';  -- aborted
    if not found then
        perform pgque.refuse_staging(i_staging_id);
    end if;
    return format('pgque.%I', format('staging_%s', i_staging_id));
end;
$$;

-- Publishes the events that these transactions wrote. If their number differs from i_events, nothing is
-- published. Returns the number. Calling it again returns the same number and publishes nothing. Events
-- of one transaction get their ids in the order of writing.
-- locks: the entry, its table. writes: staging, the queue's current event table, the catalog.
create or replace function pgque.publish_staging(
    i_staging_id bigint, i_txids xid8[], i_events bigint)
returns bigint
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp set synchronize_seqscans = off
as $$
declare
    v_staging  pgque.staging;
    v_queue    text;
    v_events   bigint;
begin
    select s.* into v_staging from pgque.staging s where s.staging_id = i_staging_id for update;
    perform pgque.check_staging_role(v_staging);
    if v_staging.published is not null then
        return v_staging.published;
    end if;
    select q.queue_name into v_queue
    from pgque.queue q
    where q.queue_id = v_staging.queue_id and v_staging.used_at > '-infinity';
    if not found then
        perform pgque.refuse_staging(i_staging_id);
    end if;

    execute format(
        'insert into %s (ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4) '  -- quoted: made of a number
        'select s.ev_type, s.ev_data, s.ev_extra1, s.ev_extra2, s.ev_extra3, s.ev_extra4 '
        'from pgque.%I s where s.st_txid = any ($1)',
        pgque.current_event_table(v_queue), format('staging_%s', i_staging_id))
    using i_txids;
    get diagnostics v_events = row_count;
    if v_events is distinct from i_events then
        raise exception 'staging % holds % of % events', i_staging_id, v_events,
                        coalesce(i_events::text, 'null')
            using errcode = 'PQ022', hint = 'Nothing was published. The server crashed in between, '
                                            'or the numbers are wrong: write the events again.';
    end if;
    update pgque.staging s set published = v_events, used_at = clock_timestamp()
    where s.staging_id = i_staging_id;
    perform pgque.drop_staging_table(i_staging_id);
    return v_events;
end;
$$;

-- Aborts a staging. Has no effect if it was published or aborted before.
-- locks: the entry, its table. writes: staging, the catalog.
create or replace function pgque.abort_staging(i_staging_id bigint)
returns void
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
begin
    perform pgque.check_staging_role(s) from pgque.staging s where s.staging_id = i_staging_id;
    -- The table stays while an attempt writes into it. The oldest time lets maint remove it.
    update pgque.staging s set used_at = '-infinity'
    where s.staging_id = i_staging_id and s.published is null;
    if found and pgque.drop_staging_table(i_staging_id) then
        delete from pgque.staging s where s.staging_id = i_staging_id;
    end if;
end;
$$;

-- Refuses to publish or abort a staging of another role, except for its members and admins.
create or replace function pgque.check_staging_role(i_staging pgque.staging)
returns void
language plpgsql stable set search_path = pgque, pg_catalog, pg_temp as $$
declare
    -- The role of SET ROLE, or the login: current_user is the owner of the calling function.
    v_caller constant name := coalesce(nullif(current_setting('role'), 'none'), session_user);
begin
    if i_staging.opened_by is null  -- there is no such staging
       or i_staging.opened_by = v_caller
       or pg_has_role(v_caller, 'pgque_admin', 'member')
       or pg_has_role(v_caller, to_regrole(quote_ident(i_staging.opened_by)), 'member') then
        return;
    end if;
    raise exception 'staging % was opened by %, not by %', i_staging.staging_id,
                    i_staging.opened_by, v_caller
        using errcode = 'insufficient_privilege',
              hint = format('Publish or abort it as %s, as a member of that role, or as an admin.',
                            i_staging.opened_by);
end;
$$;

-- Drops a staging's table, unless a session still writes into it. Returns whether it was dropped.
-- locks: the table, exclusively, without waiting. writes: the catalog.
create or replace function pgque.drop_staging_table(i_staging_id bigint)
returns boolean
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_table text := format('staging_%s', i_staging_id);
begin
    if to_regclass(format('pgque.%I', v_table)) is not null then
        execute format('lock table pgque.%I in access exclusive mode nowait', v_table);
        execute format('drop table pgque.%I', v_table);
    end if;
    return true;
exception
    when lock_not_available then
        return false;
end;
$$;

-- Raises the error for a staging that is not open.
create or replace function pgque.refuse_staging(i_staging_id bigint)
returns void
language plpgsql stable set search_path = pgque, pg_catalog, pg_temp as $$
begin
    raise exception 'staging % is not open', coalesce(i_staging_id::text, 'null')
        using errcode = 'PQ022',
              hint = 'It was published, aborted or discarded a day after its last use, or its queue '
                     'was dropped: write the events again.';
end;
$$;

-- The stagings that maintenance may remove: published ones that still have a table, and those that
-- were not used for a day.
create or replace view pgque.removable_staging as
select s.staging_id
from pgque.staging s
where s.used_at <= clock_timestamp() - interval '1 day'
   or (s.published is not null
       and to_regclass(format('pgque.%I', format('staging_%s', s.staging_id))) is not null);

-- Removes the stagings of writers that died, and the tables that were still in use when their events
-- were published. Returns the number of stagings removed.
-- locks: the tables that it drops, without waiting. writes: staging, the catalog.
create or replace function pgque.maint_staging()
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp set lock_timeout = '1s'
as $$
declare
    v_id       bigint;
    v_removed  integer := 0;
begin
    for v_id in select r.staging_id from pgque.removable_staging r loop
        -- A session that is publishing holds the entry's lock; the entry is skipped.
        perform from pgque.staging s
        where s.staging_id = v_id
          and (s.used_at <= clock_timestamp() - interval '1 day' or s.published is not null)
        for update skip locked;
        continue when not found or not pgque.drop_staging_table(v_id);
        delete from pgque.staging s
        where s.staging_id = v_id and s.used_at <= clock_timestamp() - interval '1 day';
        v_removed := v_removed + 1;
    end loop;
    return v_removed;
end;
$$;
