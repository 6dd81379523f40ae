-- Returns the type of an event: jsontriga's is JSON, the others' are PgQ's letters I, U and D, in
-- logutriga with the key's columns, and R for a TRUNCATE.
create or replace function pgque.change_type(
    i_format text, i_op text, i_schema text, i_table text, i_key text[])
returns text
language plpgsql immutable set search_path = pgque, pg_catalog, pg_temp as $$
begin
    return case
        when i_format = 'json' then format(
            '{"op":"%s","table":%s,"pkey":%s}', i_op, array_to_json(array[i_schema, i_table]),
            array_to_json(i_key))
        when i_op = 'TRUNCATE' then 'R'
        when i_format = 'url' then format('%s:%s', left(i_op, 1), array_to_string(i_key, ','))
        else left(i_op, 1) end;
end;
$$;

-- Returns a row's columns in their order. As a JSON object, it has integers and booleans as JSON
-- values, times in ISO 8601, and everything else as the text that PostgreSQL prints. Url-encoded, it is
-- name=value&..., and a null is a name alone; most texts need no encoding, and skip the call.
create or replace function pgque.row_as_text(
    i_format text, i_names text[], i_types oid[], i_sent boolean[], i_values text[])
returns text
language plpgsql stable set search_path = pgque, pg_catalog, pg_temp as $$
begin
    if i_format = 'json' then
        return (
            select format('{%s}', string_agg(format('%s:%s', to_json(name), case
                when value is null then 'null'
                when type in ('int2'::regtype, 'int4'::regtype, 'int8'::regtype) then value
                when type = 'bool'::regtype then case value when 't' then 'true' else 'false' end
                when type = 'timestamp'::regtype then to_json(value::timestamp)::text
                when type = 'timestamptz'::regtype then to_json(value::timestamptz)::text
                else to_json(value)::text end), ',' order by nr))
            from unnest(i_names, i_types, i_sent, i_values)
                 with ordinality c (name, type, sent, value, nr)
            where sent);
    end if;
    return coalesce((
        select string_agg(
            case when name ~ '[^A-Za-z0-9_.-]' then pgque.url_encode(name) else name end
            || case when value ~ '[^A-Za-z0-9_.-]' then '=' || pgque.url_encode(value)
               else coalesce('=' || value, '') end,
            '&' order by nr)
        from unnest(i_names, i_sent, i_values) with ordinality c (name, sent, value, nr)
        where sent), '');
end;
$$;

-- Encodes a text as HTML forms do, from its bytes in UTF-8. A run of characters that need no encoding
-- is copied as a whole.
create or replace function pgque.url_encode(i_text text)
returns text
language plpgsql immutable strict set search_path = pgque, pg_catalog, pg_temp as $$
begin
    return (
        select string_agg(case
            when run[1] ~ '^[A-Za-z0-9_.-]' then run[1]
            else replace(regexp_replace(encode(convert_to(run[1], 'UTF8'), 'hex'),
                                        '(..)', e'%\\1', 'g'), '%20', '+') end, '' order by nr)
        from regexp_matches(i_text, '[A-Za-z0-9_.-]+|[^A-Za-z0-9_.-]+', 'g')
             with ordinality m (run, nr));
end;
$$;

-- Returns the text after `insert into table`, `update table set` or `delete from table where`. An
-- update sets the columns that changed. If no column changed, it sets the key to itself, so that the
-- statement stays valid.
create or replace function pgque.change_fragment(
    i_op text, i_names text[], i_sent boolean[], i_key text[], i_old text[], i_new text[])
returns text
language plpgsql immutable set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_key text := (
        select string_agg(case when value is null then format('%I is null', name)
                          else format('%I=%L', name, value) end, ' and ' order by nr)
        from unnest(i_names, coalesce(i_new, i_old)) with ordinality c (name, value, nr)
        where name = any (i_key));
begin
    return case i_op
        when 'INSERT' then (
            select format('(%s) values (%s)', string_agg(quote_ident(name), ',' order by nr),
                          string_agg(coalesce(quote_literal(value), 'null'), ',' order by nr))
            from unnest(i_names, i_sent, i_new) with ordinality c (name, sent, value, nr)
            where sent)
        when 'UPDATE' then format('%s where %s', coalesce(
            (select string_agg(format('%I=%s', name, quote_nullable(becomes)), ',' order by nr)
             from unnest(i_names, i_sent, i_old, i_new) with ordinality
                  c (name, sent, was, becomes, nr)
             where sent and was is distinct from becomes),
            (select format('%I=%L', name, becomes)
             from unnest(i_names, i_new) with ordinality c (name, becomes, nr)
             where name = any (i_key)
             order by nr
             limit 1)), v_key)
        when 'DELETE' then v_key
        else '' end;
end;
$$;
