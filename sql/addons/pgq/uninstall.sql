-- Returns what would be lost with the schemas: triggers of tables, views that read PgQ's, and the records
-- of consumers about applied batches.
create or replace function pgq.dependents()
returns setof text
language plpgsql stable set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    return query
    select format('trigger %I on table %s', t.tgname, t.tgrelid::regclass)
    from pg_trigger t
    join pg_proc p on p.oid = t.tgfoid
    where p.oid in ('pgq.jsontriga()'::regprocedure, 'pgq.logutriga()'::regprocedure,
                    'pgq.sqltriga()'::regprocedure)
      and not t.tgisinternal
    union all
    select distinct format('view %s', r.ev_class::regclass)
    from pg_depend d
    join pg_class c on c.oid = d.refobjid and d.refclassid = 'pg_class'::regclass
    join pg_rewrite r on r.oid = d.objid and d.classid = 'pg_rewrite'::regclass
    join pg_class v on v.oid = r.ev_class
    where c.relnamespace in ('pgq'::regnamespace, 'pgq_ext'::regnamespace)
      and v.relnamespace <> 'pgq'::regnamespace
    union all
    select format('the last tick of consumer %I', t.consumer_id) from pgq_ext.completed_tick t
    union all
    select format('the last batch of consumer %I', b.consumer_id) from pgq_ext.completed_batch b
    union all
    select format('the events that consumer %I applied', p.consumer_id)
    from pgq_ext.partial_batch p;
end;
$$;

-- Removes PgQ's API. The queues with their events and consumers stay in schema pgque, and so do the
-- roles. Refused, unless forced, while something would be lost with the schemas: tables' triggers,
-- without which changes are no longer sent, and the records of consumers in pgq_ext. Before it checks,
-- it waits for transactions that write such records.
-- locks: all tables and views of the schemas, exclusively. writes: the catalog, addon.
create or replace function pgq.uninstall(i_force boolean default false)
returns void
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
declare
    v_lost text;
begin
    if i_force is not true then
        perform pgque.check_read_committed('uninstall without force');
        lock table pgq_ext.completed_tick, pgq_ext.completed_batch, pgq_ext.completed_event,
                   pgq_ext.partial_batch in access exclusive mode;
        select string_agg(d, ', ') into v_lost from pgq.dependents() d;
        if v_lost is not null then
            raise exception using
                errcode = 'PQ020',
                message = format('with schema pgq these would be lost: %s', v_lost),
                hint = 'Drop or replace these first (triggers of pgque take the same arguments), '
                       'or remove all with: select pgq.uninstall(true);';
        end if;
    end if;
    delete from pgque.addon a where a.addon_name = 'pgq';
    drop schema pgq_coop, pgq_ext, pgq cascade;
end;
$$;
