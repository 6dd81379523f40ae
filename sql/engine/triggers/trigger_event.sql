-- Inserts a trigger's event. The fields are ev_type, ev_data, ev_extra1 to 4; expressions replace
-- some of them, or prevent the event. The expressions run with the rights and the search_path of
-- the role that changes the row, so no search_path is pinned here and all our names are qualified.
-- locks: none beyond the insert's own. writes: the queue's current event table.
create or replace function pgque.insert_change(
    i_queue text, i_expressions text, i_row record, i_fields text[])
returns void
language plpgsql
as $$
declare
    v_fields pg_catalog.text[] := i_fields;
begin
    if i_expressions is not null then
        execute i_expressions into v_fields using i_row, i_fields;
        if v_fields is null then
            return;
        end if;
    end if;
    perform pgque.insert_event(i_queue, v_fields[1], v_fields[2], v_fields[3], v_fields[4],
                               v_fields[5], v_fields[6]);
end;
$$;
