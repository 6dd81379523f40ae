-- Returns a name quoted for SQL. The first dot separates schema and name; without a dot the schema
-- is public.
create or replace function pgque.quote_fqname(i_name text)
returns text
language plpgsql immutable set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_dot     integer := strpos(i_name, '.');
    v_schema  text := case when v_dot > 0 then left(i_name, v_dot - 1) else 'public' end;
    v_name    text := substr(i_name, v_dot + 1);
begin
    if i_name is null or v_schema = '' or v_name = '' then
        perform pgque.refuse_value('"%s" is not the name of an object', i_name, 'Pass name, or schema.name.');
    end if;
    return format('%I.%I', v_schema, v_name);
end;
$$;

-- Returns the sequence of this name if it gives out a queue's event ids. Refuses any other
-- sequence, because seq_getval and seq_setval run with the owner's rights.
create or replace function pgque.find_event_seq(i_seq_name text)
returns regclass
language plpgsql stable set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_seq regclass := (select q.queue_seq from pgque.queue q
                       where q.queue_seq = to_regclass(pgque.quote_fqname(i_seq_name)));
begin
    if v_seq is null then
        perform pgque.refuse_value('"%s" is not the event sequence of a queue', i_seq_name,
                                   'pgque.queue lists them in queue_event_seq.');
    end if;
    return v_seq;
end;
$$;

-- Returns the last event id that a queue gave out, or 0 before the first.
create or replace function pgque.seq_getval(i_seq_name text)
returns bigint
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return coalesce(pg_sequence_last_value(pgque.find_event_seq(i_seq_name)), 0);
end;
$$;

-- raise_event_ids for the sequence of this name.
-- locks: those of raise_event_ids. writes: the sequence.
create or replace function pgque.seq_setval(i_seq_name text, i_new_value bigint)
returns bigint
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
begin
    return pgque.raise_event_ids(pgque.find_event_seq(i_seq_name), i_new_value);
end;
$$;

-- Raises a queue's event ids to a value and never lowers them; returns the last id given out then.
-- setval() could lower them below an id that a producer takes at the same time. So a difference below
-- 100,000 is closed with nextval(), and a larger one with setval() under a lock that blocks
-- producers.
-- locks: the sequence against all others, until commit, for a jump of 100,000 and more.
-- writes: the sequence.
create or replace function pgque.raise_event_ids(i_seq regclass, i_new_value bigint)
returns bigint
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_last bigint := coalesce(pg_sequence_last_value(i_seq), 0);
begin
    if i_new_value is null then
        perform pgque.refuse_value('the new value is null', null,
                                   'Pass the last id that was given out elsewhere.');
    end if;
    if i_new_value >= v_last + 100000 then
        execute format('alter sequence %s owned by none', i_seq);  -- quoted: regclass quotes itself
        v_last := setval(i_seq, greatest(i_new_value, pg_sequence_last_value(i_seq)));
    end if;
    while v_last < i_new_value loop
        v_last := nextval(i_seq);
    end loop;
    return v_last;
end;
$$;
