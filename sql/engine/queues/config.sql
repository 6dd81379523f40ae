-- The parameters that users can set; each is a column of pgque.queue.
create or replace view pgque.queue_parameter as
select p.name as param_name, format_type(a.atttypid, null) as param_type,
       coalesce(pg_get_expr(d.adbin, d.adrelid), 'null') as param_default
from unnest(array[
    'disable_insert', 'external_ticker', 'max_retries', 'retention', 'rotation_period',
    'ticker_idle_period', 'ticker_max_count', 'ticker_max_lag', 'ticker_paused']) p(name)
join pg_attribute a on a.attrelid = 'pgque.queue'::regclass
                   and a.attname = format('queue_%s', p.name)
left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum;

-- Raises an error about an unknown parameter or an invalid value, with the list of parameters.
create or replace function pgque.refuse_parameter(i_message text)
returns void
language plpgsql stable set search_path = pgque, pg_catalog, pg_temp as $$
begin
    raise exception using
        errcode = 'PQ005',
        message = i_message,
        hint = format('Parameters are: %s. An interval is positive, such as ''2 hours''; '
                      'null resets a parameter to its default.', (
                          select string_agg(format('%s (%s)', p.param_name, p.param_type), ', '
                                            order by p.param_name)
                          from pgque.queue_parameter p));
end;
$$;

-- Sets one parameter of a queue; null resets it to its default. The names are PgQ's, without queue_.
-- With retention, rotation and compaction keep events of that age and their ticks, even if all
-- consumers have finished them; rotation then takes place at most twice per retention.
-- disable_insert closes the queue to every way of sending, including COPY into its tables, except for
-- sends that are already running and sessions with session_replication_role = replica.
-- locks: the queue's row. writes: queue, the catalog.
create or replace function pgque.set_queue_config(
    x_queue_name text, x_param_name text, x_param_value text)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_queue pgque.queue := pgque.find_queue(x_queue_name);
begin
    if not exists (select from pgque.queue_parameter p where p.param_name = x_param_name) then
        perform pgque.refuse_parameter(
            format('a queue has no parameter "%s"', coalesce(x_param_name, 'null')));
    end if;

    begin
        execute format(
            'update pgque.queue set %I = %s where queue_id = $1',  -- quoted: a literal or a word
            format('queue_%s', x_param_name), coalesce(quote_literal(x_param_value), 'default'))
        using v_queue.queue_id;
    exception
        when data_exception or check_violation then
            perform pgque.refuse_parameter(
                format('"%s" is not a valid value for %s of queue "%s": %s',
                       x_param_value, x_param_name, x_queue_name, sqlerrm));
    end;
    return 1;
end;
$$;

-- Closes a queue to producers or opens it again when disable_insert changes. This is a trigger because
-- PgQ's users update the column directly.
-- locks: held by the update. writes: the catalog.
create or replace function pgque.apply_disable_insert()
returns trigger
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
begin
    perform pgque.open_event_tables(new.queue_id);
    return null;
end;
$$;

create or replace trigger apply_disable_insert
after update of queue_disable_insert on pgque.queue
for each row
when (old.queue_disable_insert is distinct from new.queue_disable_insert)
execute function pgque.apply_disable_insert();

-- Also with session_replication_role = replica, so that the rights on the tables always match the row.
alter table pgque.queue enable always trigger apply_disable_insert;
