-- Which tables are captured (docs/capture.md).

-- The tables that capture() sends to a queue, or to all queues, and what is wrong with each: changes that
-- it does not see, such as those of a new partition. A partition that was detached sends none. problem is
-- null if nothing is wrong.
create or replace function pgque.captured_tables(
    i_queue text default null,
    out queue_name text, out table_name text, out key text[], out problem text)
returns setof record
language sql stable set search_path = pgque, pg_catalog, pg_temp
as $$
    with capturing as (
        select t.tgname, t.tgenabled, t.tgtype, t.tgrelid::regclass as captured, a.args
        from pg_trigger t
        cross join lateral (  -- a zero byte ends each
            select array_agg(convert_from(decode(replace(part, ' ', ''), 'hex'), getdatabaseencoding())
                             order by nr) as args
            from string_to_table(regexp_replace(encode(t.tgargs, 'hex'), '(..)', e'\\1 ', 'g'), '00 ')
                 with ordinality p (part, nr)
            where part <> '') a
        where t.tgfoid = 'pgque.capture_change()'::regprocedure and t.tgtype & 16 <> 0
          and not pgque.has_left(coalesce(pg_partition_root(t.tgrelid), t.tgrelid), t.tgrelid, t.tgname)
    )
    select c.args[1], c.args[2], pgque.key_of_table(c.captured), case
        when pgque.capture_table(c.captured) <> c.args[2] and exists (
                 select from capturing w
                 where w.args = c.args and pgque.capture_table(w.captured) = c.args[2]) then
            format('table %s sends its changes as %s too, since it had its name: '
                   'select pgque.uncapture(%1$L, %3$L)', pgque.capture_table(c.captured),
                   c.args[2], c.args[1])
        when pgque.capture_table(c.captured) <> c.args[2] then
            format('it is named %s now: call pgque.capture again', pgque.capture_table(c.captured))
        when c.tgenabled in ('D', 'R') then format('trigger %I on %s is disabled', c.tgname,
                                                   c.captured)
        when gap.r = c.captured then 'it lacks triggers: call pgque.capture again'
        when gap.r is not null then format('partition %s has no triggers: call pgque.capture again',
                                           gap.r)
        when c.args[3] is null and pgque.key_of_table(c.captured) is null then
            'it no longer has a key'
        when c.args[3] is not null and pgque.key_of_table(c.captured) is not null then
            'it has a key now: call pgque.capture again, without append'
        else 'it ' || pgque.capture_gap(c.captured, c.args[1])
        end
    from capturing c
    left join lateral (
        select r from pgque.capture_relations(c.captured) r
        where not exists (select from capturing p
                          where p.captured = r and p.args[1] = c.args[1]
                            and p.tgenabled not in ('D', 'R')
                            and (p.args[3] is not null or exists (
                                select from pg_trigger o
                                where (o.tgrelid, o.tgtype, o.tgenabled) = (r, p.tgtype, p.tgenabled)
                                  and o.tgfoid = 'pgque.capture_rows()'::regprocedure)))
        limit 1) gap on c.tgenabled not in ('D', 'R')
    where (i_queue is null or c.args[1] = i_queue)
      and not (select r.relispartition from pg_class r where r.oid = c.captured)
    union all
    select t.queue_name, pgque.capture_table(t.relation), pgque.key_of_table(t.relation), t.problem
    from pgque.relayed_tables(i_queue) t
    order by 1, 2;
$$;

-- Refuses to continue while tables are captured into a queue, or into any, because these tables could no
-- longer be changed.
create or replace function pgque.check_uncaptured(i_queue text, i_else text)
returns void
language plpgsql stable set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_tables  text;
    v_calls   text;
begin
    select string_agg(distinct c.table_name, ', '),
           string_agg(format('select pgque.uncapture(%L, %L);', c.table_name, c.queue_name), ' ')
    into v_tables, v_calls
    from pgque.captured_tables(i_queue) c;
    if v_tables is not null then
        raise exception 'tables are captured: %', v_tables
            using errcode = 'PQ007', hint = concat('Let their owners run: ', v_calls, i_else);
    end if;
end;
$$;
