-- The owners of consumers, as they name themselves: a deployment, a location in it, and the names of the
-- assets that are computed together; what is null is not known. A consumer without an owner has no row.
create table if not exists pgque.consumer_deployment (
    sub_id      integer primary key references pgque.subscription_base on delete cascade,
    deployment  text check (deployment <> ''),
    since       timestamptz not null default clock_timestamp(),
    location    text,
    assets      text[]
);
alter table pgque.consumer_deployment  -- version 0.3 has the deployment alone
    alter column deployment drop not null,
    add column if not exists location text,
    add column if not exists assets text[];

-- The consumers of a location, as it last noted them: a queue, a consumer and an asset at each place of the
-- arrays. The deployment is empty if it has no name.
create table if not exists pgque.code_location (
    deployment  text,
    location    text,
    seen_at     timestamptz not null,
    queues      text[] not null,
    consumers   text[] not null,
    assets      text[] not null,
    primary key (deployment, location)
);
