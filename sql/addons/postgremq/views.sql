-- The queues, in PostgreMQ's columns. A simple view, so rows can be changed in it.
create or replace view postgremq.queues as
select b.name, b.topic_name, b.max_delivery_attempts, b.exclusive, b.keep_alive_until
from postgremq.queue_base b;

-- The rows that a consumer may get now or later: pending and processing, without a next step. The
-- scalar subquery is evaluated row by row, so the planner cannot turn it into a join over all rows.
create or replace view postgremq.open_state as
select s.*
from postgremq.state s
where s.status in ('pending', 'processing')
  and (select true from postgremq.state n
       where n.queue_id = s.queue_id and n.message_id = s.message_id and n.step = s.step + 1
         and n.part = s.part) is null;

-- The last step of each message in a queue.
create or replace view postgremq.last_state as
select s.*
from postgremq.state s
where s.status in ('pending', 'processing', 'completed')
  and not exists (select from postgremq.state n
                  where n.queue_id = s.queue_id and n.message_id = s.message_id
                    and n.step = s.step + 1 and n.part = s.part);

-- The states of all messages in all queues. Completed messages that maintenance has copied to
-- postgremq.finished are still in their part until that is truncated.
create or replace view postgremq.all_states as
select s.queue_id, s.message_id, s.status, s.published_at, s.vt, s.attempts, s.token, s.processed_at
from postgremq.last_state s
where s.status <> 'completed'
   or not exists (select from postgremq.finished f
                  where f.queue_id = s.queue_id and f.message_id = s.message_id)
union all
select f.queue_id, f.message_id, 'completed', f.published_at, f.vt, f.attempts, null, f.processed_at
from postgremq.finished f;

-- The same in PostgreMQ's columns. Its triggers turn changes of rows into steps (table_changes.sql).
create or replace view postgremq.queue_messages as
select q.name as queue_name, a.message_id, a.status::varchar(16) as status, a.published_at, a.vt,
       a.attempts as delivery_attempts, a.token::varchar(64) as consumer_token, a.processed_at
from postgremq.all_states a
join postgremq.queue_base q on q.queue_id = a.queue_id;
