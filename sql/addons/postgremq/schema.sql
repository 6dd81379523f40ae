-- Topics, queues, messages and dead letters under the names and columns of PostgreMQ.
create schema if not exists postgremq;

create table if not exists postgremq.topics (
    name  varchar(255) primary key
);

-- The queues. The view postgremq.queues (views.sql) shows them without their numbers, which the
-- states of messages refer to. A number is never given out again.
create table if not exists postgremq.queue_base (
    name                   varchar(255) primary key,
    topic_name             varchar(255) references postgremq.topics on delete cascade,
    max_delivery_attempts  integer not null default 0,
    exclusive              boolean not null default false,
    keep_alive_until       timestamptz,
    queue_id               integer generated always as identity unique
);

create index if not exists queue_base_topic on postgremq.queue_base (topic_name);

-- The messages. They are inserted and deleted, and nothing updates them. There is no foreign key to
-- topics, since its check would lock and write the topic's row for every message: triggers do what
-- it would do (publish.sql, queues.sql).
create table if not exists postgremq.messages (
    id             serial primary key,
    topic_name     varchar(255),
    payload        jsonb not null,
    published_at   timestamptz default now(),
    deliver_after  timestamptz default now()
);

-- The topics whose messages are also events of a queue of pgque (log_topic.sql).
create table if not exists postgremq.topic_log (
    topic_name  varchar(255) primary key
                references postgremq.topics on update cascade on delete cascade,
    queue_name  text not null
);

create table if not exists postgremq.dead_letter_queue (
    queue_name    varchar(255) not null
                  references postgremq.queue_base (name) on update cascade on delete cascade,
    message_id    integer not null references postgremq.messages on delete cascade,
    retry_count   integer,
    published_at  timestamptz default now(),
    primary key (queue_name, message_id)
);

create index if not exists dead_letter_message on postgremq.dead_letter_queue (message_id);
