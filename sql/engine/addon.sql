-- Does the maintenance of an add-on, which is its function maint(), and returns how many things that
-- did. Returns 0 for an add-on that has none, or that was removed meanwhile.
-- locks: those of that function. writes: the same.
create or replace function pgque.maint_addon(i_addon_name text)
returns bigint
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_done  bigint := 0;
begin
    if exists (select from pgque.addon_maintenance() m where m = i_addon_name) then
        execute format('select %I.maint()', i_addon_name) into v_done;
    end if;
    return coalesce(v_done, 0);
end;
$$;

-- Lists the add-ons that have maintenance.
-- locks: none. writes: nothing.
create or replace function pgque.addon_maintenance()
returns setof text
language plpgsql stable security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return query
    select a.addon_name
    from pgque.addon a
    where to_regprocedure(format('%I.maint()', a.addon_name)) is not null
    order by a.addon_name;
end;
$$;
