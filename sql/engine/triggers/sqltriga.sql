-- Trigger: each change of a row becomes an event with a fragment of SQL, which its consumer
-- completes. docs/triggers.md describes arguments and formats. It runs with the rights and the
-- search_path of the role that changes the row. Generated columns are left out, because nobody may
-- write them.
-- locks: none beyond the insert's own. writes: the queue's current event table.
create or replace function pgque.sqltriga()
returns trigger
language plpgsql
as $$
declare
    c pg_catalog.record;
begin
    -- Here, because a role without any right on the schema cannot call a function of it.
    if not pg_catalog.pg_has_role('pgque_writer', 'usage') then
        raise exception using
            errcode = 'insufficient_privilege',
            message = pg_catalog.format(
                'role "%s" may not send the changes of table %s.%s: trigger "%s" sends them to a '
                'queue', current_user, tg_table_schema, tg_table_name, tg_name),
            hint = pg_catalog.format(
                'Whoever changes the table needs the role pgque_writer: grant pgque_writer to %I;',
                current_user);
    end if;
    c := pgque.describe_change(tg_name, tg_relid, tg_table_schema, tg_table_name, tg_argv, tg_when,
                               tg_level, tg_op, false, old, new);
    if c.is_event then
        perform pgque.insert_change(
            c.queue, c.expressions, coalesce(new, old),
            array[pgque.change_letter(tg_op),
                  pgque.change_fragment(tg_op, c.names, c.sent, c.key, c.old_values, c.new_values),
                  c.table_name,
                  case when c.backup and tg_op operator(pg_catalog.=) 'UPDATE' then
                      pgque.row_as_url(c.names, c.sent, c.old_values) end,
                  null, null]);
    end if;
    if c.skip or tg_when operator(pg_catalog.=) 'AFTER' then
        return null;
    end if;
    return coalesce(new, old);
end;
$$;

-- Returns the text after `insert into table`, `update table set` or `delete from table where`.
create or replace function pgque.change_fragment(
    i_op text, i_names text[], i_sent boolean[], i_key text[], i_old text[], i_new text[])
returns text
language plpgsql immutable
as $$
begin
    return case i_op
        when 'INSERT' then (
            select format('(%s) values (%s)', string_agg(quote_ident(name), ',' order by nr),
                          string_agg(coalesce(quote_literal(value), 'null'), ',' order by nr))
            from unnest(i_names, i_sent, i_new) with ordinality c (name, sent, value, nr)
            where sent)
        when 'UPDATE' then pgque.update_fragment(i_names, i_sent, i_key, i_old, i_new)
        when 'DELETE' then pgque.key_fragment(i_names, i_key, i_old)
        else '' end;
end;
$$;

-- Returns the text after `update table set`: the columns that changed. If no column changed, the
-- key is set to itself, so that the statement stays valid.
create or replace function pgque.update_fragment(
    i_names text[], i_sent boolean[], i_key text[], i_old text[], i_new text[])
returns text
language plpgsql immutable
as $$
declare
    v_set text;
begin
    select string_agg(format('%I=%s', name, quote_nullable(becomes)), ',' order by nr) into v_set
    from unnest(i_names, i_sent, i_old, i_new) with ordinality c (name, sent, was, becomes, nr)
    where sent and was is distinct from becomes;
    if v_set is null then
        select format('%I=%L', name, becomes) into v_set
        from unnest(i_names, i_new) with ordinality c (name, becomes, nr)
        where name = any (i_key)
        order by nr
        limit 1;
    end if;
    return format('%s where %s', v_set, pgque.key_fragment(i_names, i_key, i_new));
end;
$$;

-- Returns the condition that finds the row by its key.
create or replace function pgque.key_fragment(i_names text[], i_key text[], i_values text[])
returns text
language plpgsql immutable
as $$
begin
    return (
        select string_agg(case when value is null then format('%I is null', name)
                          else format('%I=%L', name, value) end, ' and ' order by nr)
        from unnest(i_names, i_values) with ordinality c (name, value, nr)
        where name = any (i_key));
end;
$$;
